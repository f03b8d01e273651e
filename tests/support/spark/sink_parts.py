"""The writer and the owner of a transactional id, made in one line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.spark.sink.arrow_encode import Columns, encode
from millstream.spark.sink.targets import take_snapshot
from millstream.spark.sink.transaction import TransactionOwner
from millstream.spark.sink.writer import Destination


def batch_of(*values: bytes) -> tuple[bytes, bytes]:
    column = pa.array(values, pa.binary())
    (one,) = encode(
        Columns(None, column, None, np.zeros(len(values), np.int64)), np.array([0, len(values)])
    )
    return one.head, bytes(one.body)


def owner(
    protocol: Protocol, name: str, timeout_ms: int = 60_000, patience_s: float = 20.0
) -> TransactionOwner:
    return TransactionOwner(protocol, name, timeout_ms=timeout_ms, patience_s=patience_s)


def destination(
    bootstrap: str, protocol: Protocol, topics: list[str], by: TransactionOwner
) -> Destination:
    targets = take_snapshot(protocol, topics, others=(), patience_s=10)
    return Destination(
        Connection(bootstrap),
        targets.leaders,
        targets.brokers,
        by.transactional_id,
        by.producer,
        10.0,
    )

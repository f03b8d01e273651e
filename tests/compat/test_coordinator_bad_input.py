"""Wrong requests that find coordinators or come from other brokers, by raw frames, and the exact
error of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat.coordinator_case import CLOSED, Case
from compat.raw_requests import UNKNOWN_ID
from compat.transaction_requests import Producer, add, add_many, offsets
from compat.transaction_requests import TransactionWorld as W
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

SHARE_KEY = "group:AAAAAAAAAAAAAAAAAAAAAA:0"
NO_SHARE_GROUPS = "there are no share groups here, and so no coordinator of them"
OFFSETS_TOPIC = "__consumer_offsets"


# ---- FindCoordinator ----


def one(key: str, kind: int = 0) -> dict[str, Any]:
    """v0 to v3; v0 knows groups alone."""
    return {"key": key, "key_type": kind}


def many(kind: int, *keys: str) -> dict[str, Any]:
    return {"key_type": kind, "coordinator_keys": list(keys)}


FIND = [
    *(Case("group", "FindCoordinator", v, lambda w: one(w["g"]), E.NONE) for v in range(4)),
    *(Case("no group id", "FindCoordinator", v, lambda w: one(""), E.NONE) for v in range(4)),
    *(
        Case("transactional id", "FindCoordinator", v, lambda w: one(w["t"], 1), E.NONE)
        for v in (1, 2, 3)
    ),
    *(
        Case("no transactional id", "FindCoordinator", v, lambda w: one("", 1), E.NONE)
        for v in (1, 3)
    ),
    *(
        Case("unknown kind", "FindCoordinator", v, lambda w: one("k", 3), E.INVALID_REQUEST)
        for v in (1, 2, 3)
    ),
    *(
        Case("share group", "FindCoordinator", v, lambda w: one(SHARE_KEY, 2), E.INVALID_REQUEST)
        for v in (1, 3)
    ),
    Case("negative kind", "FindCoordinator", 3, lambda w: one("k", -1), E.INVALID_REQUEST),
    *(
        Case("groups", "FindCoordinator", v, lambda w: many(0, w["g"], "", w["h"]), E.NONE)
        for v in (4, 5, 6)
    ),
    *(Case("ids", "FindCoordinator", v, lambda w: many(1, w["g"], ""), E.NONE) for v in (4, 5, 6)),
    *(
        Case("unknown kind", "FindCoordinator", v, lambda w: many(3, "k"), E.INVALID_REQUEST)
        for v in (4, 5, 6)
    ),
    *(
        Case(
            "share group too early",
            "FindCoordinator",
            v,
            lambda w: many(2, SHARE_KEY),
            E.INVALID_REQUEST,
        )
        for v in (4, 5)
    ),
    *(
        Case(
            f"share key {key!r}",
            "FindCoordinator",
            6,
            lambda w, key=key: many(2, key),
            E.INVALID_REQUEST,
        )
        for key in (
            "",
            "group",
            "a:b",
            ":AAAAAAAAAAAAAAAAAAAAAA:0",
            "group:short:0",
            f"{SHARE_KEY[:-1]}x",
        )
    ),
    Case(
        "share group",
        "FindCoordinator",
        6,
        lambda w: many(2, SHARE_KEY),
        E.COORDINATOR_NOT_AVAILABLE,
        kafka=E.NONE,
        why=NO_SHARE_GROUPS,
    ),
]


# ---- AddPartitionsToTxn, as brokers send it ----


def together(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"transactions": [row for part in parts for row in part["transactions"]]}


def batched(name: str, body: Any, code: E, **more: Any) -> list[Case]:
    """The row for each version that carries many transactions."""
    return [Case(name, "AddPartitionsToTxn", version, body, code, **more) for version in (4, 5)]


ADD = [
    *batched("again", lambda w: add_many(w.ongoing, (w.topic, 0)), E.NONE),
    *batched("no partitions", lambda w: add_many(w.idle), E.NONE),
    *batched(
        "empty id",
        lambda w: add_many(w.idle._replace(transactional_id=""), (w.topic, 0)),
        E.INVALID_REQUEST,
    ),
    *batched(
        "unknown id", lambda w: add_many(w.stranger, (w.topic, 0)), E.INVALID_PRODUCER_ID_MAPPING
    ),
    *batched(
        "another's producer id",
        lambda w: add_many(w.idle.other(), (w.topic, 0)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    *batched("old epoch", lambda w: add_many(w.fenced, (w.topic, 0)), E.PRODUCER_FENCED),
    *batched(
        "an epoch to come", lambda w: add_many(w.idle.newer(), (w.topic, 0)), E.PRODUCER_FENCED
    ),
    *batched(
        "unknown topic", lambda w: add_many(w.ongoing, (w["none"], 0)), E.UNKNOWN_TOPIC_OR_PARTITION
    ),
    *batched(
        "one of two is wrong",
        lambda w: together(add_many(w.ongoing, (w.topic, 0)), add_many(w.fenced, (w.topic, 0))),
        E.PRODUCER_FENCED,
    ),
    *batched(
        "verify: unknown topic",
        lambda w: add_many(w.ongoing, (w["none"], 0), verify=True),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    *batched(
        "verify: empty id",
        lambda w: add_many(w.idle._replace(transactional_id=""), (w.topic, 0), verify=True),
        E.INVALID_REQUEST,
    ),
    *batched(
        "verify: another's producer id",
        lambda w: add_many(w.ongoing.other(), (w.topic, 0), verify=True),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    *batched(
        "verify: an epoch to come",
        lambda w: add_many(w.ongoing.newer(), (w.topic, 0), verify=True),
        E.PRODUCER_FENCED,
    ),
    *batched(
        "verify: nothing begun",
        lambda w: add_many(w.idle, (w.topic, 0), verify=True),
        E.TRANSACTION_ABORTABLE,
    ),
    Case(
        "internal topic",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle, (OFFSETS_TOPIC, 0)),
        E.TOPIC_AUTHORIZATION_FAILED,
    ),
    Case("no partitions", "AddPartitionsToTxn", 3, lambda w: add(w.idle), E.NONE),
]


# ---- WriteTxnMarkers ----


def marker(
    who: Producer, topic: str, partition: int = 0, *, epoch: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "markers": [
            {
                "producer_id": who.producer_id,
                "producer_epoch": who.epoch,
                "transaction_result": False,
                "topics": [{"name": topic, "partition_indexes": [partition]}],
                "coordinator_epoch": epoch,
            }
            | more
        ]
    }


MARKERS = [
    *(Case("none", "WriteTxnMarkers", v, lambda w: {"markers": []}, E.NONE) for v in (1, 2)),
    *(
        Case(
            "unknown topic",
            "WriteTxnMarkers",
            v,
            lambda w: marker(w.idle, w["none"]),
            E.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for v in (1, 2)
    ),
    *(
        Case(
            "unknown partition",
            "WriteTxnMarkers",
            v,
            lambda w: marker(w.idle, w.topic, 9),
            E.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for v in (1, 2)
    ),
    *(
        Case(
            "old epoch",
            "WriteTxnMarkers",
            v,
            lambda w: marker(w.stale, w.topic),
            E.INVALID_PRODUCER_EPOCH,
        )
        for v in (1, 2)
    ),
    Case(
        "coordinator of the past",
        "WriteTxnMarkers",
        1,
        lambda w: marker(w.committed, w.topic, epoch=-1),
        E.TRANSACTION_COORDINATOR_FENCED,
    ),
    Case(
        "the same epoch again under version 2, nothing open",
        "WriteTxnMarkers",
        2,
        lambda w: marker(w.committed, w.topic, transaction_version=2),
        E.NONE,
    ),
    Case(
        "the same epoch under version 2, open",
        "WriteTxnMarkers",
        2,
        lambda w: marker(w.ongoing, w.topic, transaction_version=2),
        E.INVALID_PRODUCER_EPOCH,
    ),
    Case(
        "no such producer",
        "WriteTxnMarkers",
        1,
        lambda w: marker(w.idle.other(), w.topic, 1),
        E.NONE,
    ),
    Case("no topics", "WriteTxnMarkers", 1, lambda w: marker(w.idle, w.topic, topics=[]), E.NONE),
]


# ---- TxnOffsetCommit ----


def by_id(fields: dict[str, Any], topic: bytes) -> dict[str, Any]:
    return fields | {
        "topics": [{"topic_id": topic, "partitions": fields["topics"][0]["partitions"]}]
    }


COMMIT = [
    *(
        Case(
            "fine",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.with_offsets, w.groups["empty"], w.topic),
            E.NONE,
        )
        for v in range(5)
    ),
    *(
        Case(
            "unknown topic",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.with_offsets, w.groups["empty"], w["none"]),
            E.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for v in range(6)
    ),
    *(
        Case(
            "unknown partition",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.with_offsets, w.groups["empty"], w.topic, partition=9),
            E.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for v in range(6)
    ),
    *(
        Case(
            "unknown topic of an unknown id",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.stranger, w.groups["empty"], w["none"]),
            E.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for v in (0, 3, 5)
    ),
    *(
        Case(
            "unknown id",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.stranger, w["g"], w.topic),
            E.INVALID_PRODUCER_ID_MAPPING,
        )
        for v in range(6)
    ),
    *(
        Case(
            "no transactional id",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.idle._replace(transactional_id=""), w["g"], w.topic),
            E.INVALID_REQUEST,
        )
        for v in (0, 3, 5)
    ),
    *(
        Case(
            "another's producer id",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.idle.other(), w["g"], w.topic),
            E.INVALID_PRODUCER_ID_MAPPING,
        )
        for v in (0, 3, 5)
    ),
    *(
        Case("old epoch", "TxnOffsetCommit", v, lambda w: offsets(w.fenced, w["g"], w.topic), code)
        for v, code in enumerate([E.INVALID_PRODUCER_EPOCH] * 6)
    ),
    *(
        Case(
            "group is not part",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.ongoing, w["g"], w.topic),
            code,
        )
        for v, code in enumerate([E.INVALID_TXN_STATE] * 4 + [E.TRANSACTION_ABORTABLE])
    ),
    *(
        Case(
            "no group id",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.with_offsets, "", w.topic),
            E.INVALID_GROUP_ID,
        )
        for v in (0, 3, 4, 5)
    ),
    *(
        Case(
            "metadata of 5000",
            "TxnOffsetCommit",
            v,
            lambda w: offsets(w.with_offsets, w.groups["empty"], w.topic, metadata="m" * 5000),
            E.OFFSET_METADATA_TOO_LARGE,
        )
        for v in (0, 3, 4)
    ),
    Case(
        "generation without a member",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, w.groups["empty"], w.topic, generation=1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "member without a generation",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, w.groups["stable"], w.topic, member="x"),
        E.UNKNOWN_MEMBER_ID,
    ),
]
# Newer than the Apache Kafka that the other rows were asked of.
COMMIT_BY_ID = [
    Case(
        "unknown topic id",
        "TxnOffsetCommit",
        6,
        lambda w: by_id(offsets(w.with_offsets, w.groups["empty"], ""), UNKNOWN_ID),
        E.UNKNOWN_TOPIC_ID,
        CLOSED,
    ),
    Case(
        "no topic id",
        "TxnOffsetCommit",
        6,
        lambda w: by_id(offsets(w.with_offsets, w.groups["empty"], ""), bytes(16)),
        E.UNKNOWN_TOPIC_ID,
        CLOSED,
    ),
    Case(
        "unknown partition",
        "TxnOffsetCommit",
        6,
        lambda w: by_id(offsets(w.with_offsets, w.groups["empty"], "", partition=9), w.topic_id),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        CLOSED,
    ),
    Case(
        "unknown topic id of an unknown producer",
        "TxnOffsetCommit",
        6,
        lambda w: by_id(offsets(w.stranger, w["g"], ""), UNKNOWN_ID),
        E.UNKNOWN_TOPIC_ID,
        CLOSED,
    ),
]

CASES: list[Case] = [*FIND, *ADD, *MARKERS, *COMMIT, *COMMIT_BY_ID]


@pytest.fixture(scope="module")
def world(quick_broker: LocalBroker) -> Iterator[W]:
    made = W(quick_broker.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_wrong_request_gets_the_code_of_apache_kafka(world: W, case: Case) -> None:
    case.check(world)

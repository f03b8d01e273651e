"""Records of ``__transaction_state`` byte by byte, and what is skipped when read."""

from __future__ import annotations

import struct

import pytest

from millstream.core.decisions import CoordinatorRecord
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.records import decode, encode, metadata_of, record_of, tombstone_of
from millstream.wire.transaction_records import TransactionLogKey
from support.transactions.samples import A0, A1, B0, ID, PID, S, metadata

KEY = struct.pack(">hh", 0, len(ID)) + ID.encode()


def value_v0(state: int, partitions: bytes) -> bytes:
    return (
        struct.pack(">hqhib", 0, PID, 3, 60_000, state) + partitions + struct.pack(">qq", 111, 222)
    )


def test_version_0_is_laid_out_as_kafka_does() -> None:
    known = metadata(S.ONGOING, partitions=frozenset({A0, A1}), last_update_ms=111, start_ms=222)
    partitions = struct.pack(">ih1siii", 1, 1, b"a", 2, 0, 1)
    assert encode(record_of(ID, known, 0)) == (KEY, value_v0(1, partitions))


def test_an_empty_transaction_has_null_partitions() -> None:
    known = metadata(S.EMPTY, last_update_ms=111, start_ms=222)
    assert encode(record_of(ID, known, 0)) == (KEY, value_v0(0, struct.pack(">i", -1)))


def test_version_1_is_flexible_and_tags_what_version_0_lacks() -> None:
    known = metadata(
        S.PREPARE_COMMIT,
        partitions=frozenset({B0}),
        last_update_ms=111,
        start_ms=222,
        previous_producer_id=6,
        next_producer_id=8,
        client_transaction_version=2,
    )
    fixed = struct.pack(">hqhib", 1, PID, 3, 60_000, 2)
    partitions = bytes([2, 2]) + b"b" + bytes([2]) + struct.pack(">i", 0) + bytes([0])
    times = struct.pack(">qq", 111, 222)
    tags = bytes([3, 0, 8]) + struct.pack(">q", 6) + bytes([1, 8]) + struct.pack(">q", 8)
    tags += bytes([2, 2]) + struct.pack(">h", 2)
    assert encode(record_of(ID, known, 2)) == (KEY, fixed + partitions + times + tags)


def test_a_tombstone_has_no_value() -> None:
    assert encode(tombstone_of(ID)) == (KEY, None)
    assert decode(KEY, None) == CoordinatorRecord(TransactionLogKey(transactional_id=ID), None)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "known",
    [
        metadata(S.EMPTY),
        metadata(S.ONGOING, partitions=frozenset({A0, A1, B0})),
        metadata(S.ONGOING, next_producer_id=PID, next_producer_epoch=4),
        metadata(S.PREPARE_ABORT, next_producer_id=9, client_transaction_version=2),
        metadata(S.COMPLETE_COMMIT, client_transaction_version=2),
    ],
    ids=lambda known: known.state.title,
)
def test_what_is_applied_is_what_is_read_again(known: TransactionMetadata, version: int) -> None:
    record = record_of(ID, known, version)
    read = decode(*encode(record))
    assert read == record
    assert read is not None and metadata_of(read.value) == metadata_of(record.value)


def test_transaction_version_0_writes_nothing_that_its_brokers_cannot_read() -> None:
    for known in (metadata(S.EMPTY, client_transaction_version=2), metadata(S.ONGOING)):
        _, value = encode(record_of(ID, known, 0))
        assert value is not None and value[:2] == b"\0\0"


@pytest.mark.parametrize(
    "known",
    [
        metadata(S.PREPARE_COMMIT, next_producer_id=9, client_transaction_version=2),
        metadata(S.COMPLETE_COMMIT, client_transaction_version=2),
        metadata(S.COMPLETE_ABORT, previous_producer_id=6, client_transaction_version=2),
    ],
    ids=lambda known: known.state.title,
)
def test_an_end_by_the_rules_of_version_2_is_kept_whole_whatever_is_finalized(
    known: TransactionMetadata,
) -> None:
    assert metadata_of(record_of(ID, known, 0).value) == known


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\1\0\1x", None),
        (b"", None),
        (b"\0", None),
        (b"\0\0\0\x09x", None),
        (KEY, b""),
        (KEY, b"\0\2" + bytes(40)),
        (KEY, b"\0\0\0\0"),
        (KEY, value_v0(6, struct.pack(">i", 0))),
        (KEY, value_v0(7, struct.pack(">i", 0))),
        (KEY, value_v0(8, struct.pack(">i", 0))),
        (KEY, value_v0(-1, struct.pack(">i", 0))),
        (KEY, value_v0(1, struct.pack(">i", 2**31 - 1))),
    ],
    ids=[
        "another-type",
        "no-type",
        "half-a-type",
        "cut-key",
        "no-version",
        "newer-version",
        "cut-value",
        "dead",
        "fence",
        "newer-state",
        "negative-state",
        "absurd-count",
    ],
)
def test_what_cannot_be_read_is_skipped(key: bytes, value: bytes | None) -> None:
    assert decode(key, value) is None

"""The records of ``__consumer_offsets``, byte for byte, and every version that may be found in an
old log.
"""

from __future__ import annotations

import struct

import pytest

from millstream.core.decisions import CoordinatorRecord
from millstream.groups.classic.group import loaded
from millstream.groups.classic.states import State
from millstream.groups.records import decode, encode, group_tombstone, offset_tombstone, size_of
from millstream.wire.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.records.layout import HEADER_SIZE
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    TinyHost,
    commit,
    group_of,
    member,
    new_shard,
    stable_group,
)

KEY = OffsetCommitKey(group="g", topic="t", partition=3)


def test_an_offset_as_kafka_writes_it() -> None:
    value = OffsetCommitValue(
        offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=ORDERS_ID
    )
    key, data = encode(CoordinatorRecord(KEY, value))
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x03"
    # version 4 is flexible: compact metadata, and the topic id as tag 0
    fields = (
        struct.pack(">qi", 7, 2) + b"\x02m" + struct.pack(">q", 9) + b"\x01\x00\x10" + ORDERS_ID
    )
    assert data == b"\x00\x04" + fields
    assert decode(key, data) == CoordinatorRecord(KEY, value)


def test_an_offset_with_an_expiry_is_version_1() -> None:
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9, expire_timestamp=11)
    key, data = encode(CoordinatorRecord(KEY, value))
    assert data == b"\x00\x01" + struct.pack(">q", 7) + b"\x00\x01m" + struct.pack(">qq", 9, 11)
    assert decode(key, data) == CoordinatorRecord(KEY, value)


def test_a_group_is_version_3() -> None:
    record = group_of(member("a", instance_id="i", assignment=b"x")).record()
    key, data = encode(record)
    assert key == b"\x00\x02\x00\x07readers"
    assert data is not None
    assert data.startswith(b"\x00\x03\x00\x08consumer")
    assert decode(key, data) == record


def test_tombstones() -> None:
    for record in (offset_tombstone("g", "t", 3), group_tombstone("g")):
        key, data = encode(record)
        assert data is None
        assert decode(key, None) == record


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_every_version_are_read(version: int) -> None:
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
    data = struct.pack(">h", version) + bytes(value.encode(version))
    for record_type in (0, 1):
        key = struct.pack(">h", record_type) + bytes(KEY.encode(0))
        assert decode(key, data) == CoordinatorRecord(KEY, value)


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version_are_read_and_loaded(version: int) -> None:
    row = MemberMetadata(
        member_id="a", client_id="c", client_host="/h", session_timeout=6_000, assignment=b"x"
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="a", members=[row]
    )
    key = struct.pack(">h", 2) + bytes(GroupMetadataKey(group="g").encode(0))
    record = decode(key, struct.pack(">h", version) + bytes(value.encode(version)))
    assert record is not None
    group = loaded("g", record.value)
    assert (group.state, group.generation, group.leader) == (State.STABLE, 4, "a")
    # v0 knows no rebalance timeout: the session's holds for both
    assert group.members["a"].rebalance_timeout_ms == 6_000


def test_consumer_group_records_have_their_numbers() -> None:
    record = CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=3)
    )
    key, data = encode(record)
    assert key[:2] == b"\x00\x03"
    assert decode(key, data) == record
    regex = CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="x.*"), None
    )
    assert encode(regex)[0][:2] == b"\x00\x10"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\x00", None),
        (b"\x00\x63\x00\x01g", b"\x00\x00"),  # a type nobody knows
        (b"\x00\x02\x00\x09g", None),  # a key cut short
        (b"\x00\x02\x00\x01g", b"\x00\x63"),  # a version nobody knows
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),  # a value cut short
        (b"\x00\x02\x00\x01g", b""),
    ],
)
def test_what_cannot_be_read_is_skipped(key: bytes, value: bytes | None) -> None:
    assert decode(key, value) is None


def test_a_record_is_never_larger_in_a_batch_than_it_was_measured() -> None:
    host = TinyHost()
    stable_group(host, 8)
    records = [host.shard.state.classic[GROUP].record(), offset_tombstone("g" * 300, "t" * 200, 5)]
    rows = [Record(n, 2**40, *encode(record), ()) for n, record in enumerate(records)]
    assert len(build_batch(rows)) <= HEADER_SIZE + sum(map(size_of, records))


def test_a_compacted_log_tells_the_same() -> None:
    host = TinyHost()
    first, _ = stable_group(host, 2)
    for offset in range(5):
        host.ask("offset_commit", commit({("orders", 0): offset, ("trips", 1): 2}, first, 1), 8)
    host.pass_time(600_000)
    newest = dict(row for entry in host.log for row in entry.rows)
    shard = new_shard()
    for key, value in newest.items():
        record = decode(key, value)
        assert record is not None
        shard.apply(record)
    assert shard.durable == host.shard.durable

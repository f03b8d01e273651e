"""The records of a range from fetched bytes, without a broker: edges, transactions, damage."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.spark.source.offsets import Range
from millstream.spark.source.range_decoder import RangeDecoder
from millstream.wire.records.batch import Record, build_batch, build_marker
from millstream.wire.records.legacy import build_message_set

COLUMNS = [("offset", False), ("value", True)]
WRITER, ABORTED = 7, 8


def batch(base: int, count: int, producer_id: int = -1, codec: int = 0) -> bytes:
    records = [Record(base + index, 0, None, b"%d" % (base + index)) for index in range(count)]
    return build_batch(
        records,
        base_offset=base,
        codec=codec,
        producer_id=producer_id,
        transactional=producer_id >= 0,
    )


def marker(base: int, producer_id: int, *, commit: bool) -> bytes:
    return build_marker(
        base_offset=base,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=commit,
        timestamp=0,
    )


def decoded(
    buffer: bytes, start: int, end: int, aborted: list[tuple[int, int]] | None = None
) -> tuple[list[int], int]:
    decoder = RangeDecoder(Range(TopicPartition("t", 0), start, end), COLUMNS, None)
    bodies, position = decoder.select(buffer, start, aborted)
    batches = decoder.decode(bodies, start)
    return [offset for rows in batches for offset in rows.column("offset").to_pylist()], position


@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_records_outside_the_range_are_dropped(codec: int) -> None:
    buffer = batch(0, 10, codec=codec) + batch(10, 10, codec=codec)
    assert decoded(buffer, 7, 13) == ([7, 8, 9, 10, 11, 12], 13)


def test_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    whole = batch(0, 3)
    assert decoded(whole + batch(3, 3)[:-1], 0, 6) == ([0, 1, 2], 3)
    assert decoded(whole + b"\0" * 5, 0, 6) == ([0, 1, 2], 3)


def test_markers_and_aborted_records_are_skipped() -> None:
    buffer = (
        batch(0, 2, WRITER)
        + batch(2, 2, ABORTED)
        + marker(4, WRITER, commit=True)
        + marker(5, ABORTED, commit=False)
        + batch(6, 1, ABORTED)
    )
    assert decoded(buffer, 0, 9, [(ABORTED, 2)]) == ([0, 1, 6], 7)
    assert decoded(buffer, 0, 9, None) == ([0, 1, 2, 3, 6], 7)


@pytest.mark.parametrize("size", [2, 200])
def test_old_message_is_read_even_if_shorter_than_a_batch_header(size: int) -> None:
    message = build_message_set([Record(4, 0, None, b"x" * size)], magic=1)
    assert decoded(message, 4, 5) == ([4], 5)


def test_wrong_checksum_names_the_offset() -> None:
    damaged = bytearray(batch(3, 2))
    damaged[-1] ^= 1
    with pytest.raises(ClientError, match="t-0 at offset 3 is damaged: its checksum is wrong"):
        decoded(bytes(damaged), 0, 9)

"""Which records of a topic are copies, and of what."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
import pyarrow as pa

from millstream.connect.mirror.copies import rows_of
from millstream.connect.mirror.offsets import (
    Row,
)
from millstream.connect.mirror.policy import (
    HEADER,
    Origin,
)
from millstream.core.types import TopicPartition

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class TestRows:
    def test_copies_are_told_by_the_last_header_of_the_cluster_and_topic_that_is_meant(self) -> None:
        def made(*origins: Origin) -> list[dict[str, object]]:
            return [{"key": HEADER, "value": one.encode()} for one in origins]

        mine, other = Origin("east", "t", 1, 40), Origin("north", "t", 1, 7)
        headers = [
            made(mine),
            None,
            made(mine, other),
            made(other, mine),
            [{"key": "h", "value": b"east/t/1/3"}, *made(mine), {"key": "h", "value": None}],
            made(mine._replace(topic="u")),
            made(mine._replace(partition=0)),
            [{"key": HEADER, "value": None}],
            [],
        ]
        batch = pa.RecordBatch.from_pydict(
            {"offset": list(range(10, 10 + len(headers))), "headers": headers},
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        found = [row.source for row in rows_of(batch.slice(1), "east", "t", TopicPartition("east.t", 1))]
        assert found == [None, None, 40, 40, None, None, None, None]
        assert rows_of(batch, "east", "t", TopicPartition("east.t", 1))[0] == Row(10, 40)

    def test_copies_of_a_topic_that_had_the_name_before_are_no_copies_of_this_one(self) -> None:
        origins = [Origin("east", "t", 1, at, id_) for at, id_ in ((7, "old"), (0, "new"), (1, ""))]
        batch = pa.RecordBatch.from_pydict(
            {"offset": [0, 1, 2], "headers": [[{"key": HEADER, "value": one.encode()}] for one in origins]},
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        place = TopicPartition("east.t", 1)
        assert [row.source for row in rows_of(batch, "east", "t", place, "new")] == [None, 0, 1]
        assert rows_of(batch, "east", "t", place) == [Row(0, 7, "old"), Row(1, 0, "new"), Row(2, 1, "")]

"""Recognition of copies by their header."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
import pyarrow as pa

from millstream.connect.mirror.copies import rows_of
from millstream.connect.mirror.offsets import Row
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.core.types import TopicPartition

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class TestRows:
    def test_last_header_of_cluster_and_topic_identifies_a_copy(self) -> None:
        def headers_of(*origins: Origin) -> list[dict[str, object]]:
            return [{"key": HEADER, "value": origin.encode()} for origin in origins]

        mine, other = Origin("east", "t", 1, 40), Origin("north", "t", 1, 7)
        headers = [
            headers_of(mine),
            None,
            headers_of(mine, other),
            headers_of(other, mine),
            [{"key": "h", "value": b"east/t/1/3"}, *headers_of(mine), {"key": "h", "value": None}],
            headers_of(mine._replace(topic="u")),
            headers_of(mine._replace(partition=0)),
            [{"key": HEADER, "value": None}],
            [],
        ]
        batch = pa.RecordBatch.from_pydict(
            {"offset": list(range(10, 10 + len(headers))), "headers": headers},
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        found = [
            row.source for row in rows_of(batch.slice(1), "east", "t", TopicPartition("east.t", 1))
        ]
        assert found == [None, None, 40, 40, None, None, None, None]
        assert rows_of(batch, "east", "t", TopicPartition("east.t", 1))[0] == Row(10, 40)

    def test_copies_of_an_earlier_topic_of_the_name_do_not_count(self) -> None:
        origins = [Origin("east", "t", 1, at, id_) for at, id_ in ((7, "old"), (0, "new"), (1, ""))]
        batch = pa.RecordBatch.from_pydict(
            {
                "offset": [0, 1, 2],
                "headers": [[{"key": HEADER, "value": origin.encode()}] for origin in origins],
            },
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        partition = TopicPartition("east.t", 1)
        assert [row.source for row in rows_of(batch, "east", "t", partition, "new")] == [None, 0, 1]
        assert rows_of(batch, "east", "t", partition) == [
            Row(0, 7, "old"),
            Row(1, 0, "new"),
            Row(2, 1, ""),
        ]

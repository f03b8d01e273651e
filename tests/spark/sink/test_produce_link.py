"""The Produce requests of the sink equal the declared encoding."""

from __future__ import annotations

from millstream.spark.sink.produce_link import VERSION, PartitionBatch, request
from millstream.wire.messages.produce import ProduceRequest


def test_request_equals_the_declared_encoding() -> None:
    parts = [
        PartitionBatch("a", 3, b"head", b"body"),
        PartitionBatch("b", 0, b"h" * 61, b"x" * 70_000),
        PartitionBatch("a", 1, b"h", memoryview(b"b")),
    ]
    whole = b"".join(request(b"header", parts, transactional_id="owner", timeout_ms=5))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert whole[4:10] == b"header"
    decoded, end = ProduceRequest.decode(whole, VERSION, 10)
    assert end == len(whole)
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == ("owner", -1, 5)
    got = [
        (t.name, p.index, bytes(p.records)) for t in decoded.topic_data for p in t.partition_data
    ]
    assert got == [("a", 3, b"headbody"), ("a", 1, b"hb"), ("b", 0, b"h" * 61 + b"x" * 70_000)]

"""Every client of another language writes, reads back, and gets the errors that Apache Kafka would
give it.
"""

from __future__ import annotations

from interop.conftest import Target
from interop.programs import Program
from interop.rows import START_MS, expected, noise, records, row, rows_for, rows_of_sizes

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE = (1, 100, 10_000, 1_000_000, 10_000_000)


def as_node_shows(record: dict[str, object]) -> dict[str, object]:
    """KafkaJS groups headers by name, so that their order is lost; the values of one name keep
    theirs.
    """
    return record | {"headers": sorted(record["headers"], key=lambda pair: pair[0])}  # type: ignore[call-overload]


def same(got: list[dict[str, object]], wanted: list[dict[str, object]], program: Program) -> bool:
    if program.name == "node":
        got, wanted = [as_node_shows(r) for r in got], [as_node_shows(r) for r in wanted]
    return got == wanted


def test_a_client_reads_back_what_it_wrote_in_every_codec(
    target: Target, program: Program, topic_name: str
) -> None:
    rows = rows_for(program.name)
    for codec in CODECS:
        topic = target.create_topic(f"{topic_name}-{codec}")
        acks = program.produce(target.bootstrap, topic, rows, compression_type=codec)
        assert acks == [{"op": "ack", "partition": 0, "offset": i} for i in range(len(rows))], codec
        lines = program.consume(target.bootstrap, topic)
        assert same(records(lines), expected(rows), program), codec
        assert lines[-1] == {"op": "end", "partitions": 1, "end_offsets": len(rows)}


def test_messages_of_one_byte_to_ten_megabytes(
    target: Target, program: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name, max_message_bytes=12_000_000)
    rows = rows_of_sizes(LARGE)
    for number, one in enumerate(rows):
        [ack] = program.produce(target.bootstrap, topic, [one])
        assert ack == {"op": "ack", "partition": 0, "offset": number}
    assert same(records(program.consume(target.bootstrap, topic)), expected(rows), program)


def test_a_message_above_the_limit_of_its_topic_is_refused(
    target: Target, program: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name, max_message_bytes=1000)
    [refused] = program.produce(target.bootstrap, topic, [row(b"k", noise(5000))])
    assert refused == {"op": "refused", "error": "MESSAGE_TOO_LARGE"}


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(
    target: Target, program: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name, cleanup_policy="compact")
    [refused] = program.produce(target.bootstrap, topic, [row(None, b"no key")])
    assert refused["op"] == "refused"
    assert "INVALID_RECORD" in refused["error"] or "87" in refused["error"]
    assert program.produce(target.bootstrap, topic, [row(b"k", None)])[0]["op"] == "ack"


def test_a_thousand_partitions(target: Target, program: Program, topic_name: str) -> None:
    topic = target.create_topic(topic_name, partitions=1000)
    rows = [row(str(p).encode(), f"in {p}".encode(), partition=p) for p in range(1000)]
    acks = program.produce(target.bootstrap, topic, rows)
    assert sorted((a["partition"], a["offset"]) for a in acks) == [(p, 0) for p in range(1000)]
    lines = program.consume(target.bootstrap, topic)
    for p in range(1000):
        assert same(records(lines, p), expected([rows[p]]), program)


def test_offsets_are_found_by_timestamp(target: Target, program: Program, topic_name: str) -> None:
    topic = target.create_topic(topic_name)
    for i in range(10):
        program.produce(
            target.bootstrap, topic, [row(b"k", b"v", timestamp=START_MS + 1000 * i)]
        ) if i % 5 == 0 else None
    rows = [row(b"k", b"v", timestamp=START_MS + 10_000 + 10 * i) for i in range(100)]
    program.produce(target.bootstrap, topic, rows, compression_type="gzip")
    asked = [
        0,
        START_MS,
        START_MS + 1,
        START_MS + 5000,
        START_MS + 10_000,
        START_MS + 10_255,
        START_MS + 99_999,
    ]
    lines = program.run(target.bootstrap, "offsets", topic=topic, timestamps=asked)
    assert lines[0] == {"op": "range", "beginning": 0, "end": 102}
    assert [line["offset"] for line in lines[1:]] == [0, 0, 1, 1, 2, 28, -1]
    if program.name != "node":
        times = [
            START_MS,
            START_MS,
            START_MS + 5000,
            START_MS + 5000,
            START_MS + 10_000,
            START_MS + 10_260,
            -1,
        ]
        assert [line["timestamp"] for line in lines[1:]] == times


def test_the_broker_stamps_records_where_the_topic_says_so(
    target: Target, program: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name, message_timestamp_type="LogAppendTime")
    program.produce(target.bootstrap, topic, rows_for(program.name)[:20], compression_type="zstd")
    got = records(program.consume(target.bootstrap, topic))
    assert {r["timestamp_type"] for r in got} == {"LogAppendTime"}
    assert all(r["timestamp"] > START_MS + 1_800_000 for r in got)


def test_the_broker_compresses_anew_where_the_topic_says_so(
    target: Target, program: Program, topic_name: str
) -> None:
    rows = rows_for(program.name)
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = target.create_topic(f"{topic_name}-{codec}", compression_type=codec)
        program.produce(
            target.bootstrap, topic, rows, compression_type="gzip" if codec != "gzip" else "none"
        )
        assert same(records(program.consume(target.bootstrap, topic)), expected(rows), program), (
            codec
        )


def test_an_idempotent_producer_and_a_plain_one_write_side_by_side(
    target: Target, program: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name)
    rows = rows_for(program.name)
    program.produce(target.bootstrap, topic, rows, enable_idempotence="true")
    program.produce(target.bootstrap, topic, rows, enable_idempotence="false", acks="1")
    program.produce(target.bootstrap, topic, rows, enable_idempotence="true")
    assert same(records(program.consume(target.bootstrap, topic)), expected(rows * 3), program)

"""Files written here, read by Apache Kafka's own log dump tool and opened by its broker."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.apache_kafka import ApacheKafka, dump_log_segments
from interop.conftest import BrokerStarter
from interop.programs import Librdkafka
from interop.rows import START_MS, expected, noise, records, various_rows
from millstream.wire.records.batch import Record, build_batch
from support.raw import RawClient, produce

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
MANY = 35


def create(bootstrap: str, topic: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=config or {})]).values():
        made.result(30)
    time.sleep(0.5)  # Apache Kafka opens the partition a moment later


def batch(part: int, producer_id: int) -> bytes:
    """A hundred records of a kilobyte, every fifth batch in another codec, from one idempotent
    producer.
    """
    records = [
        Record(i, START_MS + part * 1000 + i, b"k%d" % i, noise(1000, part * 100 + i), ())
        for i in range(100)
    ]
    return build_batch(
        records, codec=part % 5, producer_id=producer_id, producer_epoch=0, base_sequence=part * 100
    )


def write_segments(bootstrap: str, topic: str, producer_id: int = 1000) -> None:
    """Several segments of 1 MiB, the same bytes for every broker."""
    with RawClient(bootstrap) as client:
        for part in range(MANY):
            answer = produce(client, topic, 0, batch(part, producer_id))
            assert answer.error_code == 0, answer


def files(directory: Path, kind: str) -> list[str]:
    found = sorted(str(path) for path in directory.glob(f"*.{kind}"))
    assert found, f"no .{kind} in {directory}"
    return found


def test_the_dump_tool_reads_every_codec(
    java_command: list[str], start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    broker = start_millstream(tmp_path)
    create(broker.bootstrap, "codecs")
    for codec in CODECS:
        Librdkafka().produce(broker.bootstrap, "codecs", various_rows(), compression_type=codec)
    broker.stop()
    [log] = files(broker.data_dir / "codecs-0", "log")
    said = dump_log_segments(java_command, "--deep-iteration", "--print-data-log", "--files", log)
    assert re.findall(r"compresscodec: (\w+) crc: \d+ isvalid: (\w+)", said) == [
        (codec, "true") for codec in CODECS
    ]
    found = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", said, re.M)]
    assert found == list(range(len(CODECS) * len(various_rows())))
    assert said.count("key: schlüssel-鍵 payload: wert-値-🌾") == len(CODECS)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_the_dump_tool_finds_the_indexes_right(
    java_command: list[str], start_millstream: BrokerStarter, tmp_path: Path, ended: str
) -> None:
    broker = start_millstream(tmp_path)
    create(broker.bootstrap, "segments", SMALL_SEGMENTS)
    write_segments(broker.bootstrap, "segments")
    if ended == "killed":
        broker.restart(kill=True)
    broker.stop()
    directory = broker.data_dir / "segments-0"
    indexes = [*files(directory, "index"), *files(directory, "timeindex")]
    assert len(indexes) >= 6, "several segments"
    listed = ",".join(indexes)
    said = dump_log_segments(java_command, "--index-sanity-check", "--files", listed)
    assert said.count("passed sanity check.") == len(indexes)
    said = dump_log_segments(java_command, "--verify-index-only", "--files", listed)
    assert [line for line in said.splitlines() if not line.startswith("Dumping")] == []
    said = dump_log_segments(java_command, "--files", ",".join(files(directory, "log")))
    assert len(re.findall(r"isvalid: true", said)) == MANY and "isvalid: false" not in said
    last = files(directory, "snapshot")[-1]
    said = dump_log_segments(java_command, "--files", last)
    [sequences] = re.findall(
        r"producerEpoch: 0 .* firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+)", said
    )
    assert sequences == ("3400", "3499", "3499")


def test_segments_and_indexes_are_byte_for_byte_those_of_apache_kafka(
    start_apache: Callable[..., ApacheKafka], start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    kafka, broker = start_apache(tmp_path / "kafka"), start_millstream(tmp_path / "millstream")
    for bootstrap in (kafka.bootstrap, broker.bootstrap):
        create(bootstrap, "same", SMALL_SEGMENTS)
        write_segments(bootstrap, "same")
    kafka.stop()
    broker.stop()
    ours, theirs = broker.data_dir / "same-0", kafka.data_dir / "same-0"
    for kind in ("log", "index", "timeindex", "snapshot"):
        for path in map(Path, files(theirs, kind)):
            assert (ours / path.name).read_bytes() == path.read_bytes(), path.name
    assert (ours / "leader-epoch-checkpoint").read_text() == (
        theirs / "leader-epoch-checkpoint"
    ).read_text()


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_apache_kafka_opens_partitions_written_here(
    start_apache: Callable[..., ApacheKafka],
    start_millstream: BrokerStarter,
    tmp_path: Path,
    ended: str,
) -> None:
    """Apache Kafka makes the topic, then finds our files in its place: its log loader must take
    them as they are.
    """
    broker, client = start_millstream(tmp_path / "millstream"), Librdkafka()
    create(broker.bootstrap, "moved", SMALL_SEGMENTS)
    for codec in CODECS:
        client.produce(broker.bootstrap, "moved", various_rows(), compression_type=codec)
    write_segments(broker.bootstrap, "moved")
    wanted = records(client.consume(broker.bootstrap, "moved"))
    assert wanted[: len(various_rows())] == expected(various_rows())
    broker.kill() if ended == "killed" else broker.stop()

    kafka = start_apache(tmp_path / "kafka")
    create(kafka.bootstrap, "moved", SMALL_SEGMENTS)
    kafka.kill() if ended == "killed" else kafka.stop()
    theirs = kafka.data_dir / "moved-0"
    identity = (theirs / "partition.metadata").read_text()
    shutil.rmtree(theirs)
    shutil.copytree(broker.data_dir / "moved-0", theirs)
    (theirs / "partition.metadata").write_text(identity)
    kafka.start()
    assert records(client.consume(kafka.bootstrap, "moved")) == wanted
    kafka.stop()

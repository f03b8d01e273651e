"""A data directory written by Apache Kafka, stopped or killed, is opened here and read back
completely.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop.apache_kafka import ApacheKafka, dump_log_segments
from interop.conftest import BrokerStarter
from interop.programs import Librdkafka, Line, Program, Row
from interop.rows import START_MS, noise, row, various_rows

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "idempotent": (1, SMALL_SEGMENTS),
    "transactional": (1, SMALL_SEGMENTS),
    "compacted": (
        1,
        SMALL_SEGMENTS
        | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"},
    ),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
    "cut": (1, {}),
}
PATIENCE_S = 60


class Written:
    """What Apache Kafka held: its directory stopped and killed, and what clients read from it."""

    def __init__(self, stopped: Path, killed: Path, seen: dict[str, Any]) -> None:
        self.directories = {"stopped": stopped, "killed": killed}
        self.seen = seen


def observe(bootstrap: str) -> dict[str, Any]:
    """Everything that a client can ask about the topics, as one value to compare."""
    client, admin = Librdkafka(), AdminClient({"bootstrap.servers": bootstrap})
    described = {
        t: f.result(30) for t, f in admin.describe_topics(TopicCollection(list(TOPICS))).items()
    }
    return {
        topic: {
            "id": str(described[topic].topic_id),
            "partitions": len(described[topic].partitions),
            "committed": sorted_records(
                client.consume(bootstrap, topic, isolation_level="read_committed")
            ),
            "uncommitted": sorted_records(client.consume(bootstrap, topic)),
            "offsets": offsets(admin, topic),
        }
        for topic in TOPICS
    }


def sorted_records(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (line["partition"], line["offset"]))


def offsets(admin: AdminClient, topic: str) -> list[tuple[int, int]]:
    """Earliest, latest, newest and by timestamp, of the first partition."""
    first = TopicPartition(topic, 0)
    specs = [OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp()]
    if (
        topic != "compacted"
    ):  # a segment cleaned of everything hides the later ones from Apache Kafka's search
        specs += [OffsetSpec.for_timestamp(START_MS + 1000 * second) for second in range(0, 40, 3)]
    answers = [admin.list_offsets({first: spec})[first].result(30) for spec in specs]
    return [(answer.offset, answer.timestamp) for answer in answers]


def fill(kafka: ApacheKafka, java: Program) -> None:
    client, admin = Librdkafka(), AdminClient({"bootstrap.servers": kafka.bootstrap})
    new = [
        NewTopic(name, partitions, 1, config=config)
        for name, (partitions, config) in TOPICS.items()
    ]
    for made in admin.create_topics(new).values():
        made.result(30)
    time.sleep(1)
    for number, codec in enumerate(CODECS):
        rows = [one | {"partition": number % 3} for one in various_rows()]
        client.produce(kafka.bootstrap, "plain", rows, compression_type=codec)
        client.produce(kafka.bootstrap, "stamped", various_rows(), compression_type=codec)
        client.produce(kafka.bootstrap, "cut", various_rows(), compression_type=codec)
    client.produce_batches(
        kafka.bootstrap, "idempotent", map(idempotent_rows, range(35)), enable_idempotence="true"
    )
    for number, codec in enumerate(CODECS):
        batches = map(overwriting_rows, range(number * 6, number * 6 + 6))
        client.produce_batches(kafka.bootstrap, "compacted", batches, compression_type=codec)
    for part in range(4):
        config = {"transactional.id": f"t{part}"}
        java.run(kafka.bootstrap, "transactions", topic="transactional", count=5, config=config)
        plain = [row(b"between", noise(300_000, part))]
        client.produce(kafka.bootstrap, "transactional", plain)
    admin.delete_records([TopicPartition("cut", 0, 300)])[TopicPartition("cut", 0)].result(30)
    wait_compacted(kafka.data_dir)


def idempotent_rows(part: int) -> list[Row]:
    return [
        row(b"k%d" % i, noise(1000, part * 100 + i), timestamp=START_MS + part * 1000 + i)
        for i in range(100)
    ]


def overwriting_rows(part: int) -> list[Row]:
    """Twenty keys again and again, some with a tombstone."""
    return [
        row(b"k%d" % (i % 20), noise(2000, part * 100 + i) if i % 17 else None) for i in range(100)
    ]


def wait_compacted(data_dir: Path) -> None:
    checkpoint = data_dir / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + PATIENCE_S
    while not (checkpoint.exists() and "compacted 0" in checkpoint.read_text()):
        assert time.monotonic() < deadline, "the topic was not compacted"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def written(
    start_apache: Callable[..., ApacheKafka],
    java: Program,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Written]:
    place = tmp_path_factory.mktemp("written")
    kafka = start_apache(
        place / "kafka", {"log.cleaner.backoff.ms": 300, "log.segment.delete.delay.ms": 100}
    )
    fill(kafka, java)
    time.sleep(1)  # one more pass of the cleaner, so that it is done with what it has
    kafka.kill()
    shutil.copytree(kafka.data_dir, place / "killed")
    kafka.start()
    seen = observe(kafka.bootstrap)
    kafka.stop()
    shutil.copytree(kafka.data_dir, place / "stopped")
    yield Written(place / "stopped", place / "killed", seen)


def first_difference(got: Any, wanted: Any) -> str:
    if not (isinstance(got, list) and isinstance(wanted, list)):
        return f"{got} instead of {wanted}"
    pairs = enumerate(zip(got, wanted, strict=False))
    where = next((i for i, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    return f"{len(got)} and {len(wanted)}; at {where} {got[where : where + 1]} instead of {wanted[where : where + 1]}"


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [
        f"{topic}.{name}: {first_difference(got[topic][name], wanted[topic][name])}"
        for topic in wanted
        for name in wanted[topic]
        if got[topic][name] != wanted[topic][name]
    ]


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_every_topic_is_found_and_read_back(
    written: Written, start_millstream: BrokerStarter, tmp_path: Path, ended: str
) -> None:
    shutil.copytree(written.directories[ended], tmp_path / "data")
    broker = start_millstream(tmp_path, {"node.id": 1})
    assert differences(observe(broker.bootstrap), written.seen) == []
    broker.stop()


def test_without_its_indexes_and_snapshots_everything_is_rebuilt(
    written: Written, start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    shutil.copytree(written.directories["killed"], tmp_path / "data")
    for kind in ("index", "timeindex", "txnindex", "snapshot"):
        for file in (tmp_path / "data").glob(f"*-[0-9]*/*.{kind}"):
            file.unlink()
    broker = start_millstream(tmp_path, {"node.id": 1})
    assert differences(observe(broker.bootstrap), written.seen) == []
    broker.stop()


def test_rebuilt_indexes_are_right_in_the_eyes_of_apache_kafka(
    written: Written, java_command: list[str], start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    shutil.copytree(written.directories["killed"], tmp_path / "data")
    ours, theirs = (
        tmp_path / "data" / "transactional-0",
        written.directories["stopped"] / "transactional-0",
    )
    for kind in ("index", "timeindex", "txnindex", "snapshot"):
        for file in ours.glob(f"*.{kind}"):
            file.unlink()
    start_millstream(tmp_path, {"node.id": 1}).stop()
    transactions = [file for file in theirs.glob("*.txnindex") if file.stat().st_size]
    assert transactions, "some transactions were aborted"
    for file in transactions:
        assert (ours / file.name).read_bytes() == file.read_bytes()
        said = dump_log_segments(java_command, "--files", str(ours / file.name))
        assert "producerId:" in said
    indexes = sorted(str(file) for file in [*ours.glob("*.index"), *ours.glob("*.timeindex")])
    said = dump_log_segments(java_command, "--verify-index-only", "--files", ",".join(indexes))
    assert [
        line
        for line in said.splitlines()
        if not line.startswith("Dumping") and "is empty" not in line
    ] == []
    assert producers(java_command, ours) == producers(java_command, theirs)


def producers(java_command: list[str], directory: Path) -> list[str]:
    """The state of the producers at the end of a log, in the words of the dump tool."""
    said = dump_log_segments(java_command, "--files", str(max(directory.glob("*.snapshot"))))
    return sorted(line for line in said.splitlines() if line.startswith("producerId:"))


def test_an_adopted_topic_goes_on_where_it_was(
    written: Written, start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    shutil.copytree(written.directories["stopped"], tmp_path / "data")
    broker = start_millstream(tmp_path, {"node.id": 1})
    client = Librdkafka()
    end = written.seen["idempotent"]["offsets"][1][0]
    acks = client.produce(broker.bootstrap, "idempotent", various_rows(), enable_idempotence="true")
    assert [ack["offset"] for ack in acks] == [end + i for i in range(len(acks))]
    broker.restart()
    after = observe(broker.bootstrap)["idempotent"]
    assert after["id"] == written.seen["idempotent"]["id"]
    assert after["uncommitted"][:end] == written.seen["idempotent"]["uncommitted"]
    assert len(after["uncommitted"]) == end + len(acks)
    broker.stop()

"""Damaged files at startup are reported with their path, kept unchanged, and harm as little as
possible.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.broker.app import StartError
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import RawClient, create_topic, fetch, produce

MARKER = ".kafka_cleanshutdown"
STORE = "millstream.store"
LOG = "00000000000000000000.log"


def batch(text: bytes = b"v") -> bytes:
    return build_batch([Record(0, 1_700_000_000_000, b"k", text, ())])


def started(data: Path, **settings: object) -> InProcessBroker:
    return InProcessBroker({"log.dirs": data, "log.index.interval.bytes": 100, **settings})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two topics of twenty records, cleanly closed."""
    data = tmp_path_factory.mktemp("template") / "data"
    with started(data) as broker, RawClient(broker.bootstrap) as client:
        for topic in ("one", "two"):
            create_topic(client, topic, retention_ms=-1)
            for n in range(20):
                produce(client, topic, 0, batch(b"%d" % n))
    assert (data / MARKER).exists()
    return data


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "data")
    return tmp_path / "data"


def records(broker: InProcessBroker, topic: str) -> int:
    """Return the number of records that can be read, by their offsets."""
    with RawClient(broker.bootstrap) as client:
        answer = fetch(client, topic, 0, 0)
        assert answer.error_code == 0, ErrorCode.of(answer.error_code)
        return int(answer.high_watermark)


def refusal(data: Path, **settings: object) -> str:
    with pytest.raises(StartError) as error, started(data, **settings):
        pass
    return str(error.value)


# ---- files that startup needs ----


def test_damaged_store_is_reported_and_kept(data: Path) -> None:
    store = data / STORE
    lines = store.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b"/one" in line)
    lines[number] = lines[number].replace(b"/one", b"/0ne")
    damaged = b"".join(lines)
    store.write_bytes(damaged)
    complaint = f"{store}, line {number + 1}: the checksum does not match; restore the file"
    assert complaint in refusal(data)
    assert store.read_bytes() == damaged


def test_missing_store_is_reported_and_deletes_nothing(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / STORE).unlink()
    with started(data) as broker, RawClient(broker.bootstrap) as client:
        assert (records(broker, "one"), records(broker, "two")) == (20, 20)
        row = DescribeConfigsResource(
            resource_type=2, resource_name="one", configuration_keys=["retention.ms"]
        )
        (configs,) = client.call(DescribeConfigsRequest(resources=[row]), 4).results
        assert [entry.value for entry in configs.configs] == ["-1"]
    assert f"the metadata store {data / STORE} is missing" in caplog.text


def test_incomplete_last_line_of_the_store_is_reported(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = data / STORE
    lines = len(store.read_bytes().splitlines())
    with store.open("ab") as file:
        file.write(b"0123abcd [[")
    with started(data) as broker:
        assert records(broker, "one") == 20
    assert f"{store}, line {lines + 1} is incomplete" in caplog.text


@pytest.mark.parametrize("damage", [b"version=7\n", b"nonsense", b"\xff\x00\xfe"])
def test_directory_that_cannot_be_identified_is_rejected(data: Path, damage: bytes) -> None:
    (data / "meta.properties").write_bytes(damage)
    assert "meta.properties" in refusal(data)
    assert (data / "meta.properties").read_bytes() == damage


def test_directory_of_another_broker_or_cluster_is_rejected(data: Path) -> None:
    assert "belongs to the broker 0, not to 5" in refusal(data, **{"node.id": 5})
    assert "the cluster id of the setting cluster.id is another" in refusal(
        data, **{"cluster.id": "another"}
    )


def test_failed_start_leaves_a_clean_shutdown_clean(data: Path) -> None:
    refusal(data, **{"cluster.id": "another"})
    assert (data / MARKER).exists()


def test_failed_start_does_not_mark_a_killed_broker_as_clean(data: Path) -> None:
    """Otherwise the next start would skip recovery."""
    (data / MARKER).unlink()
    good = (data / STORE).read_bytes()
    (data / STORE).write_bytes(b"00000000 []\n" + good)
    refusal(data)
    assert not (data / MARKER).exists()
    (data / STORE).write_bytes(good)
    with (data / "one-0" / LOG).open("ab") as log:
        log.write(b"torn" * 30)
    with started(data) as broker:
        assert records(broker, "one") == 20


# ---- files that can be replaced ----


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
@pytest.mark.parametrize("damage", [b"0\n5\nnonsense\n", b"\x00" * 100, b"9\n0\n", None])
def test_damaged_checkpoint_is_reported_and_ignored(
    data: Path, name: str, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is None:
        (data / name).unlink(missing_ok=True)
    else:
        (data / name).write_bytes(damage)
    with started(data) as broker:
        assert (records(broker, "one"), records(broker, "two")) == (20, 20)
    assert damage is None or name in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_segment_takes_one_partition_offline_and_keeps_its_data(
    data: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Flushed data that became unreadable is not truncated silently."""
    if not clean:
        (data / MARKER).unlink()
    log = data / "one-0" / LOG
    damaged = bytearray(log.read_bytes())
    damaged[200:230] = b"\xaa" * 30
    log.write_bytes(damaged)
    for index in log.parent.glob("*index"):
        index.unlink()  # so that a clean start has to read the log as well
    with started(data) as broker, RawClient(broker.bootstrap) as client:
        assert "one-0" in caplog.text and "Traceback" not in caplog.text
        assert records(broker, "two") == 20
        assert fetch(client, "one").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, "one", 0, batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, "two", 0, batch()).error_code == 0
        topics = client.call(MetadataRequest(topics=None), 9).topics
        assert {topic.name: topic.partitions[0].leader_id for topic in topics} == {
            "one": -1,
            "two": 0,
        }
    assert log.read_bytes() == damaged
    assert not (data / MARKER).exists(), "the damaged partition must be looked at again"


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint", LOG])
@pytest.mark.parametrize("damage", [b"\x00\xff nonsense", b"", None])
def test_other_damage_to_a_partition_does_not_hurt_the_others(
    data: Path, name: str, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = data / "one-0" / name
    path.unlink() if damage is None else path.write_bytes(damage)
    with started(data) as broker:
        assert records(broker, "two") == 20
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", [b"\x00\xff nonsense", b"\xff" * 800, b"", None])
@pytest.mark.parametrize("clean", [True, False])
def test_files_that_can_be_rebuilt_are_rebuilt(
    data: Path, suffix: str, damage: bytes | None, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not clean:
        (data / MARKER).unlink()
    for path in (data / "one-0").glob(f"*{suffix}"):
        path.unlink() if damage is None else path.write_bytes(damage)
    with started(data) as broker, RawClient(broker.bootstrap) as client:
        assert records(broker, "one") == 20
        for offset in (0, 7, 19):
            assert fetch(client, "one", 0, offset).records
        assert produce(client, "one", 0, batch()).base_offset == 20
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("verification", ["true", "false"])
def test_coordinator_rejects_a_flipped_offset_commit(
    tmp_path: Path, verification: str, caplog: pytest.LogCaptureFixture
) -> None:
    """This does not depend on the policy for reads of clients: the offset would be used until the
    next restart.
    """
    settings = {"offsets.topic.num.partitions": 1, "log.read.verification.enable": verification}
    with started(tmp_path, **settings) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "one")
        client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        wait_until(lambda: commit(client, 1832) == 0, "the commit")
    log = tmp_path / "__consumer_offsets-0" / LOG
    damaged = bytearray(log.read_bytes())
    damaged[damaged.index((1832).to_bytes(8, "big")) + 6] ^= 0x10  # 1832 becomes 5928
    log.write_bytes(damaged)
    with started(tmp_path, **settings) as broker, RawClient(broker.bootstrap) as client:
        wait_until(
            lambda: committed(client)[0] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the load"
        )
        assert committed(client) == (ErrorCode.NOT_COORDINATOR, -1)
        assert produce(client, "one", 0, batch()).error_code == 0
    assert f"{LOG} is corrupt" in caplog.text and "Traceback" not in caplog.text


def commit(client: RawClient, offset: int) -> int:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = [OffsetCommitRequestTopic(name="one", partitions=rows)]
    (topic,) = client.call(OffsetCommitRequest(group_id="g", topics=topics), 8).topics
    return int(topic.partitions[0].error_code)


def committed(client: RawClient) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="one", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    (group,) = client.call(request, 8).groups
    return group.error_code, group.topics[0].partitions[0].committed_offset if group.topics else -1


def test_foreign_files_and_directories_are_left_alone(data: Path) -> None:
    (data / "notes.txt").write_text("mine")
    (data / "lost+found").mkdir()
    (data / "one-0" / "notes.txt").write_text("mine too")
    (data / "not a topic-0").mkdir()
    (data / "topic-without-number").mkdir()
    with started(data) as broker:
        assert records(broker, "one") == 20
    assert (data / "notes.txt").read_text() == "mine"
    assert (data / "one-0" / "notes.txt").read_text() == "mine too"
    assert (data / "lost+found").is_dir() and (data / "not a topic-0").is_dir()

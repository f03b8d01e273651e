"""Disks that are full or fail under a running broker: the client is told, nothing false is
acknowledged, the rest goes on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.broker.app import StartError
from millstream.core.errors import ErrorCode
from millstream.local.broker import LocalBroker
from millstream.sim.world.disk import SimDisk, io_error, no_space
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.records.batch import Record, build_batch, parse_header
from support.in_process import InProcessBroker
from support.processes import complaints, wait_until
from support.raw import RawClient, create_topic, fetch, fetch_request, produce

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
Fault = Callable[[str, str], OSError | None]


def healthy(operation: str, path: str) -> OSError | None:
    return None


def failing(error: Callable[[str], OSError], operations: tuple[str, ...], below: str) -> Fault:
    return lambda op, path: error(path) if op in operations and path.startswith(below) else None


@contextmanager
def faulty(disk: SimDisk, fault: Fault) -> Iterator[None]:
    disk.fault = fault
    try:
        yield
    finally:
        disk.fault = healthy


def batch(count: int = 1, **more: int) -> bytes:
    return build_batch([Record(n, -1, b"k", b"value" * 10, ()) for n in range(count)], **more)


def bases(records: bytes) -> list[int]:
    """The base offsets of fetched batches."""
    found, position = [], 0
    while position < len(records):
        header = parse_header(records, position)
        found.append(header.base_offset)
        position += header.size
    return found


def leaders(client: RawClient) -> dict[str, int]:
    topics = client.call(MetadataRequest(topics=None), 9).topics
    return {topic.name: topic.partitions[0].leader_id for topic in topics}


# ---- a full disk ----


def test_a_full_disk_refuses_appends_serves_reads_and_works_again_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    with (
        InProcessBroker({"log.dirs": "/data"}, files=disk) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "t")
        assert produce(client, "t", 0, batch()).base_offset == 0
        with faulty(disk, failing(no_space, ("append", "write"), "/data")):
            for _ in range(3):
                assert produce(client, "t", 0, batch()).error_code == STORAGE_ERROR
            assert bases(fetch(client, "t").records) == [0]
            new = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            made = client.call(CreateTopicsRequest(topics=[new], timeout_ms=1000), 7).topics[0]
            assert made.error_code == STORAGE_ERROR
        assert produce(client, "t", 0, batch(3)).base_offset == 1
        assert produce(client, "t", 0, batch()).base_offset == 4
        assert bases(fetch(client, "t").records) == [0, 1, 4]
        create_topic(client, "new")
    assert "Traceback" not in caplog.text


def test_full_disk_is_logged_in_a_few_lines_however_often_requests_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Appends, new topics, transactions and the coordinators' own retries: each
    kind has one limit.
    """
    disk = SimDisk()
    settings = {"log.dirs": "/data", "transaction.state.log.num.partitions": 3}
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        begin = InitProducerIdRequest(transactional_id="mover", transaction_timeout_ms=60_000)
        find = FindCoordinatorRequest(key="mover", key_type=1)
        wait_until(lambda: client.call(find, 3).error_code == 0, "the coordinator")
        wait_until(lambda: client.call(begin, 4).error_code == 0, "a transactional producer")
        caplog.clear()
        with faulty(disk, failing(no_space, ("append", "write"), "/data")):
            for number in range(200):
                produce(client, "t", 0, batch())
                client.call(begin, 4)
                new = CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1)
                client.call(CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
            lines = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert len(lines) <= 12, "\n".join(lines)
    assert any("cannot append t-0" in line for line in lines)
    assert any("the metadata store cannot be written" in line for line in lines)


def test_an_append_that_failed_is_not_a_duplicate_when_it_is_sent_again() -> None:
    disk = SimDisk()
    with (
        InProcessBroker({"log.dirs": "/data"}, files=disk) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "t")
        given = client.call(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4
        )
        rows = [
            batch(
                2,
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                base_sequence=n,
            )
            for n in (0, 2)
        ]
        assert produce(client, "t", 0, rows[0]).base_offset == 0
        with faulty(disk, failing(no_space, ("append",), "/data/t-0")):
            assert produce(client, "t", 0, rows[1]).error_code == STORAGE_ERROR
        assert produce(client, "t", 0, rows[1]).base_offset == 2
        assert produce(client, "t", 0, rows[1]).base_offset == 2  # and this one is
        assert bases(fetch(client, "t").records) == [0, 2]


def test_a_flush_that_fails_is_not_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    settings = {"log.dirs": "/data,/other", "metadata.log.dir": "/meta"}
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t", flush_messages=1)
        assert produce(client, "t", 0, batch()).error_code == 0
        with faulty(
            disk, lambda op, path: io_error(path) if op == "sync" and "/t-0" in path else None
        ):
            assert produce(client, "t", 0, batch()).error_code == STORAGE_ERROR
    assert "Traceback" not in caplog.text


def test_a_start_on_a_full_disk_says_what_to_do() -> None:
    disk = SimDisk()
    with InProcessBroker({"log.dirs": "/data"}, files=disk):
        pass
    disk.fault = failing(no_space, ("append", "write"), "/data")
    with pytest.raises(StartError, match=r"metadata store .* Make some room there"):
        InProcessBroker({"log.dirs": "/data"}, files=disk).start()


@pytest.mark.parametrize("operation", ["write", "rename", "sync", "open", "makedirs"])
@pytest.mark.parametrize("error", [no_space, io_error])
def test_a_disk_that_fails_at_the_start_is_told(
    operation: str, error: Callable[[str], OSError], caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    disk.fault = failing(error, (operation,), "/data")
    with pytest.raises(StartError) as told, InProcessBroker({"log.dirs": "/data"}, files=disk):
        pass
    assert "/data" in str(told.value) and str(error("").strerror) in str(told.value)
    assert "Traceback" not in caplog.text
    disk.fault = healthy
    with (
        InProcessBroker({"log.dirs": "/data"}, files=disk) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "t")


# ---- one of two directories ----


def test_a_directory_that_fails_goes_offline_and_the_other_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    settings = {"log.dirs": "/a,/b", "metadata.log.dir": "/meta"}
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        for name in ("one", "two"):
            create_topic(client, name)
            assert produce(client, name, 0, batch()).error_code == 0
        where = {
            tp.topic: log.log_dir
            for tp, log in broker.run(lambda: dict(broker.broker.parts.logs.logs)).items()
        }
        assert sorted(where.values()) == ["/a", "/b"]
        good, bad = sorted(where, key=lambda name: where[name])
        waiting = RawClient(broker.bootstrap)
        waiting.send(fetch_request(bad, 0, 1, max_wait_ms=60_000), 11)
        disk.fault = failing(io_error, ("append", "read", "sync", "write", "open", "rename"), "/b")
        assert produce(client, bad, 0, batch()).error_code == STORAGE_ERROR
        # Whoever waits on it is told, whoever asks for it as well, and all others are served.
        assert waiting.receive()[1].responses[0].partitions[0].error_code == STORAGE_ERROR
        waiting.close()
        assert fetch(client, bad).error_code == STORAGE_ERROR
        assert produce(client, good, 0, batch()).base_offset == 1
        assert bases(fetch(client, good).records) == [0, 1]
        assert leaders(client) == {good: 0, bad: -1}
        for name in ("three", "four"):
            create_topic(client, name)
            assert produce(client, name, 0, batch()).error_code == 0
        described = client.call(DescribeLogDirsRequest(topics=None), 4).results
        assert {row.log_dir: row.error_code for row in described} == {"/a": 0, "/b": STORAGE_ERROR}
    assert "the data directory /b is offline" in caplog.text
    assert "Traceback" not in caplog.text
    assert disk.exists("/a/.kafka_cleanshutdown") and not disk.exists("/b/.kafka_cleanshutdown")
    # Repaired, everything is there again.
    disk.fault = healthy
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        assert leaders(client) == {"one": 0, "two": 0, "three": 0, "four": 0}
        assert bases(fetch(client, bad).records) == [0]
        assert bases(fetch(client, good).records) == [0, 1]


def test_a_directory_that_is_broken_at_the_start_hides_its_partitions_and_makes_no_second_ones() -> (
    None
):
    disk = SimDisk()
    settings = {"log.dirs": "/a,/b", "metadata.log.dir": "/meta"}
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        for name in ("one", "two"):
            create_topic(client, name)
            produce(client, name, 0, batch())
    disk.kill()
    disk.fault = failing(io_error, ("listdir", "read", "open"), "/b")
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        assert sorted(leaders(client).values()) == [-1, 0]
        for name, leader in leaders(client).items():
            code = produce(client, name, 0, batch()).error_code
            assert code == (STORAGE_ERROR if leader < 0 else 0)
    disk.fault = healthy
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        assert list(leaders(client).values()) == [0, 0]
        assert all(bases(fetch(client, name).records)[0] == 0 for name in ("one", "two"))


def test_when_every_directory_has_failed_the_broker_ends() -> None:
    disk = SimDisk()
    settings = {"log.dirs": "/a", "metadata.log.dir": "/meta"}
    with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        disk.fault = failing(io_error, ("append", "sync", "write"), "/a")
        assert produce(client, "t", 0, batch()).error_code == STORAGE_ERROR
        wait_until(lambda: broker.run(broker.broker.failed.done), "the broker to notice")
        assert "every data directory has failed" in broker.run(broker.broker.failed.result)


# ---- real disks ----


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB; only root can make one."""
    place = tmp_path / "tiny"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_really_fills_up(tiny_disk: Path, broker: Callable[..., LocalBroker]) -> None:
    started = broker({"log.dirs": tiny_disk, "log.segment.delete.delay.ms": 0})
    with RawClient(started.bootstrap) as client:
        create_topic(client, "kept")
        create_topic(client, "large", file_delete_delay_ms=0)
        assert produce(client, "kept", 0, batch()).error_code == 0
        large = build_batch([Record(0, -1, None, bytes(200_000), ())])
        codes = [produce(client, "large", 0, large).error_code for _ in range(30)]
        assert set(codes) == {0, STORAGE_ERROR} and codes == sorted(codes)
        stored = codes.count(0)
        assert bases(fetch(client, "large", 0, stored - 1).records) == [stored - 1]
        # Room is made by deleting a topic, and everything works again.
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="large")], timeout_ms=5000)
        assert client.call(gone, 6).responses[0].error_code in (0, STORAGE_ERROR)
        if "large" in leaders(
            client
        ):  # the store could not be written: an administrator makes room
            (tiny_disk / "large-0" / "00000000000000000000.log").unlink()
            assert client.call(gone, 6).responses[0].error_code == 0
        wait_until(
            lambda: produce(client, "kept", 0, batch()).error_code == 0, "room to be there again"
        )
        assert bases(fetch(client, "kept").records)[0] == 0
    assert started.stop() == 0
    assert complaints(started.output()) == []

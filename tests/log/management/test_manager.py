"""All logs of a broker: directories, locks, failures, checkpoints, deletion, clean and unclean
stops.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.management.events import IgnoredEvents
from millstream.log.management.manager import LogDir, LogDirError, LogManager, ManagerSettings
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import SimDisk, io_error, no_space
from support.log.world import NOW_MS, TP, append, batch, manager, read_all

ID = uuid.UUID(int=5)


def dirs(tmp_path: Path, *which: str) -> list[str]:
    return [str(tmp_path / name) for name in which or ("one", "two")]


def made(tmp_path: Path, *which: str, **options: object) -> LogManager:
    return manager(RealFiles(), dirs(tmp_path, *which), **options)  # type: ignore[arg-type]


def filled(logs: LogManager, tp: TopicPartition = TP, batches: int = 5) -> None:
    log = logs.create(tp, ID)
    for _ in range(batches):
        append(log, batch(2))
    log.advance_high_watermark(log.log_end_offset)


def test_a_new_directory_is_made_and_identified(tmp_path: Path) -> None:
    logs = made(tmp_path)
    for path in dirs(tmp_path):
        text = Path(path, "meta.properties").read_text()
        assert "version=1\n" in text
        assert "cluster.id=cluster\n" in text
        assert "node.id=1\n" in text
        assert "directory.id=" in text
    ids = {log_dir.directory_id for log_dir in logs.dirs.values()}
    assert len(ids) == 2
    logs.close(broker_epoch=1)
    again = made(tmp_path)
    assert {log_dir.directory_id for log_dir in again.dirs.values()} == ids
    assert again.cluster_id == "cluster"
    again.close(broker_epoch=1)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    made(tmp_path).close(broker_epoch=1)
    logs = LogManager(
        RealFiles(), dirs(tmp_path), config_for=lambda topic: LogConfig(), clock=lambda: NOW_MS
    )
    logs.open()
    with pytest.raises(LogDirError, match="belongs to the cluster cluster, not to other"):
        logs.identify("other", 1)
    with pytest.raises(LogDirError, match="belongs to the broker 1, not to 2"):
        logs.identify("cluster", 2)
    logs.close(broker_epoch=None)


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    logs = made(tmp_path)
    with pytest.raises(LogDirError, match="in use by another broker"):
        made(tmp_path)
    logs.close(broker_epoch=1)
    made(tmp_path).close(broker_epoch=1)


def test_a_directory_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="twice"):
        made(tmp_path, "one", "./one")


def test_damaged_identity_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.mkdir()
    (path / "meta.properties").write_text("version=7\n")
    with pytest.raises(LogDirError, match="version '7'"):
        made(tmp_path, "one")


def test_new_logs_go_to_the_directory_with_the_fewest(tmp_path: Path) -> None:
    logs = made(tmp_path)
    for number in range(6):
        logs.create(TopicPartition("spread", number), ID)
    placed = [log.log_dir for log in logs.logs.values()]
    assert sorted(placed.count(path) for path in dirs(tmp_path)) == [3, 3]
    wanted = logs.create(TopicPartition("chosen", 0), ID, directory=dirs(tmp_path)[1])
    assert wanted.log_dir == dirs(tmp_path)[1]
    with pytest.raises(ApiError) as error:
        logs.create(TopicPartition("chosen", 1), ID, directory=str(tmp_path / "three"))
    assert error.value.code == ErrorCode.LOG_DIR_NOT_FOUND
    logs.close(broker_epoch=None)


@pytest.mark.parametrize("clean", [True, False])
def test_logs_are_found_again_with_their_offsets(tmp_path: Path, clean: bool) -> None:
    logs = made(tmp_path)
    filled(logs)
    logs.get(TP).delete_records(3)  # type: ignore[union-attr]
    logs.checkpoints.write_all()
    logs.close(broker_epoch=7 if clean else None)
    again = made(tmp_path)
    log = again.get(TP)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 10, 10)
    assert log.topic_id == ID
    assert again.directories.clean_broker_epoch == (7 if clean else -1)
    again.close(broker_epoch=None)


def test_the_clean_shutdown_marker_is_used_once(tmp_path: Path) -> None:
    logs = made(tmp_path, "one")
    filled(logs)
    logs.close(broker_epoch=7)
    marker = tmp_path / "one" / ".kafka_cleanshutdown"
    assert marker.exists()
    again = made(tmp_path, "one")
    assert not marker.exists()
    again.close(broker_epoch=None)


def test_an_unknown_log_is_none(tmp_path: Path) -> None:
    logs = made(tmp_path)
    assert logs.get(TP) is None
    logs.close(broker_epoch=None)


# -- deleting


def test_a_deleted_log_is_gone_at_once_and_its_files_later(tmp_path: Path) -> None:
    logs = made(tmp_path, "one", settings=ManagerSettings(delete_delay_ms=1000))
    filled(logs)
    logs.delete(TP)
    assert logs.get(TP) is None
    (left,) = [name for name in os.listdir(tmp_path / "one") if name.startswith("orders")]
    assert left.endswith("-delete")
    assert logs.deletes.take_due(NOW_MS + 999) == []
    for item in logs.deletes.take_due(NOW_MS + 1000):
        item.remove(logs.files)
    assert not (tmp_path / "one" / left).exists()
    logs.close(broker_epoch=None)


def test_interrupted_deletion_is_finished_at_the_next_start(tmp_path: Path) -> None:
    logs = made(tmp_path, "one")
    filled(logs)
    logs.delete(TP)
    logs.close(broker_epoch=1)
    again = made(tmp_path, "one")
    assert again.logs == {}
    for item in again.deletes.take_due(NOW_MS):
        item.remove(again.files)
    assert not [name for name in os.listdir(tmp_path / "one") if name.startswith("orders")]
    again.close(broker_epoch=None)


def test_a_log_of_the_same_name_does_not_inherit_checkpoints(tmp_path: Path) -> None:
    logs = made(tmp_path, "one")
    filled(logs, batches=50)
    logs.get(TP).delete_records(90)  # type: ignore[union-attr]
    logs.get(TP).flush()  # type: ignore[union-attr]
    logs.checkpoints.write_all()
    logs.delete(TP)
    filled(logs, batches=2)
    logs.close(broker_epoch=None)
    again = made(tmp_path, "one")
    log = again.get(TP)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    again.close(broker_epoch=None)


def test_checkpoint_in_progress_does_not_claim_truncated_offsets() -> None:
    """After a power cut the log would be found to lack what had been flushed, and stay offline."""
    disk = SimDisk(1)
    logs = manager(disk, ["/a"])
    log = logs.create(TP, ID)
    for _ in range(20):
        append(log, batch())
    log.flush()
    (log_dir,) = logs.online_dirs()
    under_way = logs.checkpoints.job(log_dir, file_names.RECOVERY_POINTS)  # waits for a thread
    log.truncate_to(5)
    under_way.run()
    append(log, batch(), leader_epoch=1)
    disk.crash()
    again = manager(disk, ["/a"])
    assert again.offline == {}
    assert 5 <= again.logs[TP].log_end_offset <= 6


def test_no_checkpoint_claims_more_than_is_left_of_a_log() -> None:
    disk = SimDisk(1)
    logs = manager(disk, ["/a"])
    filled(logs, batches=10)
    logs.get(TP).flush()  # type: ignore[union-attr]
    logs.checkpoints.write_all()
    logs.get(TP).truncate_to(4)  # type: ignore[union-attr]
    (log_dir,) = logs.online_dirs()
    assert {
        log_dir.largest_claim(name, TP)
        for name in (file_names.RECOVERY_POINTS, file_names.HIGH_WATERMARKS)
    } == {4}


def test_stray_log_is_renamed_and_left_alone(tmp_path: Path) -> None:
    logs = made(tmp_path, "one")
    filled(logs)
    logs.mark_stray(TP)
    logs.close(broker_epoch=1)
    again = made(tmp_path, "one")
    assert again.logs == {}
    (left,) = [name for name in os.listdir(tmp_path / "one") if name.startswith("orders")]
    assert left.endswith("-stray")
    again.close(broker_epoch=None)


def test_retention_marks_files_and_removes_them_after_the_delay(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_bytes=0, file_delete_delay_ms=500)
    logs = made(tmp_path, "one", config=config)
    filled(logs, batches=20)
    log = logs.logs[TP]
    held = log.read(0, 100, upto=40)
    log.delete_old_segments(NOW_MS)
    marked = [name for name in os.listdir(log.directory) if name.endswith(".deleted")]
    assert any(name.endswith(".log.deleted") for name in marked)
    assert logs.deletes.take_due(NOW_MS + 500) == [], "not before the log start is durable"
    logs.checkpoints.write_all([file_names.LOG_STARTS])
    for item in logs.deletes.take_due(NOW_MS + 500):
        item.remove(logs.files)
    assert not [name for name in os.listdir(log.directory) if name.endswith(".deleted")]
    assert held.slice is not None
    assert len(held.slice.read()) == held.size, "a slow reader still has its bytes"
    logs.close(broker_epoch=None)


# -- failing


def simulated(*which: str) -> tuple[SimDisk, LogManager]:
    disk = SimDisk()
    return disk, manager(disk, [f"/{name}" for name in which or ("one", "two")])


def test_failed_directory_takes_only_its_partitions_offline() -> None:
    told: list[tuple[str, list[TopicPartition]]] = []

    class Events(IgnoredEvents):
        def directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
            told.append((log_dir.path, partitions))

    disk = SimDisk()
    logs = manager(disk, ["/one", "/two"], events=Events())
    for number in range(4):
        filled(logs, TopicPartition("spread", number))
    victim = next(tp for tp, log in logs.logs.items() if log.log_dir == "/one")
    held = logs.logs[victim]
    disk.fault = lambda operation, path: io_error(path) if path.startswith("/one/") else None

    with pytest.raises(ApiError) as error:
        append(held, batch(1))
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(logs.logs) == 2
    assert told[0][0] == "/one"
    assert victim in told[0][1]
    for call in (
        lambda: logs.get(victim),
        lambda: append(held, batch(1)),
        lambda: held.read(0, 100, upto=1),
    ):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        logs.create(victim, ID)
    other = next(iter(logs.logs.values()))
    append(other, batch(1))
    assert logs.create(TopicPartition("new", 0), ID).log_dir == "/two"
    disk.fault = lambda operation, path: None
    logs.close(broker_epoch=3)
    disk.kill()
    again = manager(disk, ["/one", "/two"])
    assert len(again.logs) == 5, "what is back is served again"
    assert again.directories.clean_broker_epoch == -1


def test_when_every_directory_has_failed_nothing_is_online() -> None:
    disk, logs = simulated("one")
    filled(logs)
    disk.fault = lambda operation, path: io_error(path)
    with pytest.raises(ApiError):
        append(logs.logs[TP], batch(1))
    assert logs.online_dirs() == []
    with pytest.raises(ApiError) as error:
        logs.create(TopicPartition("new", 0), ID)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("what", [file_names.PARTITION_METADATA, ".log"])
def test_a_log_that_could_not_be_made_on_a_full_disk_leaves_nothing_behind(what: str) -> None:
    disk = SimDisk()
    logs = manager(disk, ["/a"])
    before = disk.listdir("/a")
    disk.fault = lambda operation, path: (
        no_space(path) if operation in ("open", "write") and path.endswith(what) else None
    )
    for _ in range(3):
        with pytest.raises(ApiError):
            logs.create(TP, ID)
    assert disk.listdir("/a") == before
    disk.fault = lambda operation, path: None
    filled(logs)
    assert sorted(disk.listdir("/a")) == sorted([*before, str(TP)])


def test_a_full_disk_refuses_appends_and_takes_them_again_later() -> None:
    disk, logs = simulated("one")
    filled(logs)
    log = logs.logs[TP]
    before = [raw for _, raw in read_all(log)]
    disk.fault = lambda operation, path: (
        no_space(path) if operation in ("append", "write") else None
    )
    for _ in range(3):
        with pytest.raises(ApiError) as error:
            append(log, batch(1))
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        logs.create(TopicPartition("new", 0), ID)
    assert logs.online_dirs()
    disk.fault = lambda operation, path: None
    assert append(log, batch(1)).base_offset == 10
    assert [raw for _, raw in read_all(log)][:-1] == before


def test_unusable_directory_is_offline_from_the_start() -> None:
    disk, logs = simulated()
    filled(logs)
    home = logs.logs[TP].log_dir
    logs.close(broker_epoch=1)
    other = "/two" if home == "/one" else "/one"
    disk.fault = lambda operation, path: io_error(path) if path.startswith(other) else None
    again = manager(disk, ["/one", "/two"])
    assert [log_dir.path for log_dir in again.online_dirs()] == [home]
    assert TP in again.logs
    disk.fault = lambda operation, path: io_error(path)
    disk.kill()
    with pytest.raises(LogDirError, match="none of the data directories"):
        manager(disk, ["/one", "/two"])


def test_one_damaged_partition_is_offline_by_itself_and_stays_so(tmp_path: Path) -> None:
    logs = made(tmp_path, "one")
    filled(logs, batches=20)
    filled(logs, TopicPartition("other", 0))
    for log in logs.logs.values():
        log.flush()
    logs.checkpoints.write_all()
    path = logs.logs[TP].segments[0].path(file_names.LOG)
    logs.close(broker_epoch=None)
    os.truncate(path, 100)

    for _ in range(3):
        again = made(tmp_path, "one")
        assert list(again.logs) == [TopicPartition("other", 0)]
        with pytest.raises(ApiError, match="flushed") as error:
            again.get(TP)
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "records are missing" in again.offline[TP] or "at byte" in again.offline[TP]
        assert os.stat(path).st_size == 100
        again.close(
            broker_epoch=4
        )  # a clean stop must not make the next start trust the damaged log


def test_removed_files_take_only_their_partition_offline(tmp_path: Path) -> None:
    logs = made(tmp_path, "one", config=LogConfig(segment_bytes=300))
    filled(logs)
    filled(logs, TopicPartition("other", 0))
    log = logs.logs[TP]
    RealFiles().rmtree(log.directory)
    with pytest.raises(ApiError) as error:
        for _ in range(10):
            append(log, batch(2))
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert TP in logs.offline
    assert logs.online_dirs()
    append(logs.logs[TopicPartition("other", 0)], batch(1))
    logs.close(broker_epoch=None)


@pytest.mark.parametrize(
    "name", [file_names.RECOVERY_POINTS, file_names.LOG_STARTS, file_names.HIGH_WATERMARKS]
)
def test_damaged_checkpoint_is_logged_and_ignored(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs = made(tmp_path, "one")
    filled(logs)
    logs.checkpoints.write_all()
    logs.close(broker_epoch=1)
    (tmp_path / "one" / name).write_text("0\n1\ngarbage\n")
    again = made(tmp_path, "one")
    assert f"{name}: line 3" in caplog.text
    log = again.get(TP)
    assert log is not None
    assert len(read_all(log)) == 5
    again.close(broker_epoch=None)


def test_of_two_directories_of_one_partition_the_longer_is_kept(tmp_path: Path) -> None:
    one, two = dirs(tmp_path)
    logs = made(tmp_path, "one")
    filled(logs, batches=3)
    logs.close(broker_epoch=None)
    logs = made(tmp_path, "two")
    filled(logs, batches=5)
    logs.close(broker_epoch=None)
    again = made(tmp_path, "one", "two")
    assert again.logs[TP].log_dir == two
    assert again.logs[TP].log_end_offset == 10
    assert [name for name in os.listdir(one) if name.endswith("-stray")]
    again.close(broker_epoch=None)

"""The log against a list of batches, under everything that can happen to it, on a disk that can
crash.

Each seed is a story of some dozens of random steps: appends (plain, idempotent, transactional),
rolls, truncations, DeleteRecords, retention, flushes, idle releases, restarts, process deaths,
machine deaths, failing writes. After every step the log says what the list says. A failing seed can
be run alone: `pytest -k 'story[seed17]'`.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.flush.job import FlushJob, flush
from millstream.log.management.manager import LogManager, ManagerSettings
from millstream.log.partition_log import AppendResult, PartitionLog
from millstream.log.producers.snapshot import SnapshotEntry
from millstream.sim.world.disk import SimDisk, io_error, no_space
from millstream.wire.records.layout import HEADER_SIZE
from support.log.world import NOW_MS, TP, append, append_marker, batch, manager, read_all

SEEDS = 300
STEPS = 60


@dataclass
class Sent:
    """The last batch of an idempotent producer, to be sent again."""

    sequence: int
    count: int
    offset: int
    fill: bytes


@dataclass
class Model:
    """What the log should hold."""

    batches: list[tuple[int, int, bytes]] = field(
        default_factory=list
    )  # base offset, last offset, body
    start: int = 0
    end: int = 0
    epoch: int = 0

    def truncate(self, offset: int) -> None:
        self.batches = [b for b in self.batches if b[1] < offset]

    def kept(self, start: int) -> list[tuple[int, int, bytes]]:
        return [b for b in self.batches if b[1] >= start]


class Story:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = SimDisk(seed)
        self.config = LogConfig(
            segment_bytes=self.dice.choice((1100, 2000, 5000)),
            index_interval_bytes=self.dice.choice((1, 150, 4096)),
            segment_index_bytes=self.dice.choice((10 << 20, 60)),
            retention_bytes=-1,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.model = Model()
        self.sent: dict[int, Sent] = {}
        self.open: dict[int, int] = {}  # transactional producer -> epoch
        self.epochs: dict[int, int] = {}
        self.log: PartitionLog
        self.manager: LogManager
        self.acknowledged = 0
        self._start(create=True)
        self.log = self.manager.create(TP, uuid.UUID(int=9))
        self.log.flush()

    def _start(self, create: bool = False) -> None:
        settings = ManagerSettings(writeback_bytes=300, flush_bytes=800)
        self.manager = manager(self.disk, ["/a", "/b"], config=self.config, settings=settings)
        assert not self.manager.offline, self.manager.offline
        if not create:
            self.log = self.manager.logs[TP]
            self.log.advance_high_watermark(self.log.log_end_offset)

    def step(self) -> None:
        steps = {
            self.append_plain: 10,
            self.append_idempotent: 8,
            self.append_transactional: 4,
            self.end_transaction: 3,
            self.resend: 3,
            self.failing_append: 2,
            self.roll: 1,
            self.truncate: 1,
            self.delete_records: 1,
            self.retention: 1,
            self.flush: 1,
            self.background: 2,
            self.truncate_during_flush: 1,
            self.checkpoint: 1,
            self.release: 2,
            self.new_leader: 1,
            self.restart: 1,
            self.kill: 2,
            self.crash: 2,
        }
        action = self.dice.choices(list(steps), list(steps.values()))[0]
        action()
        self.check()

    # -- appending

    def _accept(self, records: memoryview, result: AppendResult) -> None:
        assert result.base_offset == self.model.end
        assert not result.duplicate
        self.model.batches.append(
            (result.base_offset, result.last_offset, bytes(records[HEADER_SIZE:]))
        )
        self.model.end = result.last_offset + 1
        self.acknowledged += 1
        self.log.advance_high_watermark(self.log.log_end_offset)

    def _fill(self) -> bytes:
        return self.dice.randbytes(3)

    def append_plain(self) -> None:
        records = batch(self.dice.randint(1, 5), size=self.dice.randint(0, 60), fill=self._fill())
        self._accept(records, append(self.log, records, leader_epoch=self.model.epoch))

    def append_idempotent(self) -> None:
        producer_id = self.dice.randint(1, 3)
        last = self.sent.get(producer_id)
        sequence = last.sequence + last.count if last else 0
        count, fill = self.dice.randint(1, 4), self._fill()
        records = batch(count, producer_id=producer_id, epoch=0, sequence=sequence, fill=fill)
        result = append(self.log, records, leader_epoch=self.model.epoch)
        self._accept(records, result)
        self.sent[producer_id] = Sent(sequence, count, result.base_offset, fill)

    def resend(self) -> None:
        if self.sent:
            producer_id = self.dice.choice(sorted(self.sent))
            sent = self.sent[producer_id]
            again = batch(
                sent.count, producer_id=producer_id, epoch=0, sequence=sent.sequence, fill=sent.fill
            )
            result = append(self.log, again, leader_epoch=self.model.epoch)
            assert result.duplicate
            assert result.base_offset == sent.offset

    def append_transactional(self) -> None:
        producer_id = self.dice.randint(11, 13)
        epoch = self.epochs.get(producer_id, 0)
        sequence = 0
        if producer_id in self.open:
            sequence = self.log.producer_state.producers[producer_id].last_sequence + 1
        records = batch(
            2,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=True,
            fill=self._fill(),
        )
        self._accept(records, append(self.log, records, leader_epoch=self.model.epoch))
        self.open[producer_id] = epoch

    def end_transaction(self) -> None:
        if not self.open:
            return
        producer_id = self.dice.choice(sorted(self.open))
        epoch = self.open.pop(producer_id)
        commit = self.dice.random() < 0.5
        result = append_marker(
            self.log, producer_id, epoch, commit=commit, leader_epoch=self.model.epoch
        )
        offset = result.base_offset
        assert offset == self.model.end
        ((_, raw),) = read_all(self.log, start=offset)
        self.model.batches.append((offset, offset, raw[HEADER_SIZE:]))
        self.model.end = offset + 1
        self.epochs[producer_id] = epoch + 1
        self.log.advance_high_watermark(self.log.log_end_offset)

    def failing_append(self) -> None:
        """A full disk refuses the append, and nothing of it remains."""
        chance = self.dice.random()

        def fault(operation: str, path: str) -> OSError | None:
            if operation == "append" or (operation == "undo append" and chance < 0.3):
                return no_space(path)
            return None

        self.disk.fault = fault
        try:
            with pytest.raises(ApiError) as failure:
                append(self.log, batch(2, size=40, fill=b"lost"), leader_epoch=self.model.epoch)
            assert failure.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        finally:
            self.disk.fault = lambda operation, path: None
        assert self.log.failed is None

    # -- changing it

    def roll(self) -> None:
        self.log.roll(now_ms=NOW_MS)

    def new_leader(self) -> None:
        self.model.epoch += 1

    def truncate(self) -> None:
        offset = self.dice.randint(self.model.start, self.model.end)
        self.log.truncate_to(offset, now_ms=NOW_MS)
        self.model.truncate(offset)
        self.model.end = self.log.log_end_offset
        assert self.model.end <= max(offset, self.model.start)
        if self.model.batches:
            assert self.model.end >= self.model.batches[-1][1] + 1
        self._forget_producers()

    def delete_records(self) -> None:
        offset = self.dice.randint(self.model.start, self.model.end)
        self.model.start = self.log.delete_records(offset)
        assert self.model.start == offset
        self.manager.checkpoints.write_all(
            [file_names.LOG_STARTS]
        )  # as the broker does before it answers

    def retention(self) -> None:
        self.log.update_config(
            replace(self.config, retention_bytes=self.dice.choice((-1, 0, 1500, 4000)))
        )
        self.log.delete_old_segments(NOW_MS)
        self.model.start = self.log.log_start_offset
        self.log.update_config(self.config)
        for item in self.manager.deletes.take_due(NOW_MS):
            item.remove(self.manager.files)

    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end

    def truncate_during_flush(self) -> None:
        """A flush that began before a truncation must not vouch for what is appended after it."""
        job = FlushJob.prepare(self.log)
        self.truncate()
        self.append_plain()
        if job is not None:
            job.run()
            self.append_plain()
            job.completed()

    def background(self) -> None:
        """What housekeeping does when logs ask for it."""
        while self.manager.queues.flush:
            log, _ = self.manager.queues.flush.popitem()
            flush(log)

    def checkpoint(self) -> None:
        self.manager.checkpoints.write_all()

    def release(self) -> None:
        self.manager.pool.sweep()
        self.manager.pool.sweep()

    # -- stopping and dying

    def restart(self) -> None:
        before = self._state()
        self.manager.close(broker_epoch=5)
        self._start()
        assert self.manager.directories.clean_broker_epoch == 5
        assert self._state() == before

    def kill(self) -> None:
        before = self._state()
        self.disk.kill()
        self._start()
        assert self._state() == before
        self._forget_producers()

    def crash(self) -> None:
        flushed = self.log.recovery_point
        self.disk.crash()
        self._start()
        end = self.log.log_end_offset
        assert end >= min(flushed, self.model.end), f"flushed up to {flushed}, but ends at {end}"
        assert end <= self.model.end
        self.model.batches = [b for b in self.model.batches if b[1] < end]
        assert self.log.log_start_offset <= self.model.start or end == self.log.log_start_offset
        self.model.start, self.model.end = self.log.log_start_offset, end
        self._forget_producers()

    def _forget_producers(self) -> None:
        """After records were lost, producers go on from what the log knows of them."""
        state = self.log.producer_state
        for producer_id in list(self.sent):
            entry = state.producers.get(producer_id)
            if entry is None or not entry.batches:
                del self.sent[producer_id]
            elif entry.batches[-1].first_offset != self.sent[producer_id].offset:
                last = entry.batches[-1]
                self.sent[producer_id] = Sent(
                    last.first_sequence,
                    last.last_offset - last.first_offset + 1,
                    last.first_offset,
                    b"again",
                )
        self.open = {p: e.epoch for p, e in state.producers.items() if e.txn_first_offset >= 0}
        self.epochs = {
            p: e.epoch + (e.txn_first_offset < 0) for p, e in state.producers.items() if p > 10
        }

    def _state(self) -> object:
        """What must be the same after a restart."""
        log = self.log
        producers: list[SnapshotEntry] = [
            entry._replace(coordinator_epoch=0)  # of a marker that may be deleted
            for entry in sorted(log.producer_state.snapshot())
            # Those whose records are deleted live in snapshots only, which a recovery may have to
            # pass over.
            if max(entry.last_offset, entry.current_txn_first_offset) >= log.log_start_offset
        ]
        aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        known = [txn for txn in aborted if txn[1] >= log.log_start_offset]
        undecided = log.producer_state.first_undecided_offset
        if undecided is not None and undecided < log.log_start_offset:
            undecided = None  # of an open transaction whose records are deleted nothing may be left
        offsets = (log.log_start_offset, log.log_end_offset, undecided)
        epochs = [entry for entry in log.epochs.entries() if entry[1] < log.log_end_offset]
        return offsets, producers, known, epochs

    # -- checking

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        found = read_all(log, dice=self.dice)
        assert [
            (h.base_offset, h.last_offset, raw[HEADER_SIZE:]) for h, raw in found
        ] == model.kept(model.start)
        self.check_random_reads()
        self.check_indexes()

    def check_random_reads(self) -> None:
        model, dice = self.model, self.dice
        if model.start == model.end:
            return
        for _ in range(3):
            offset = dice.randint(model.start, model.end)
            upto = dice.randint(model.start, model.end)
            wanted = [b for b in model.batches if b[1] >= offset and b[1] < upto]
            found = read_all(self.log, start=offset, upto=upto, dice=dice)
            assert [h.base_offset for h, _ in found] == [b[0] for b in wanted]

    def check_indexes(self) -> None:
        for segment in self.log.segments:
            index = segment.index.offsets()
            headers = dict(segment.batches())
            for offset, position in zip(index.offsets, index.positions, strict=True):
                assert headers[position].last_offset == index.base_offset + offset


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_story(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    assert story.acknowledged > 5


@pytest.mark.parametrize("seed", range(20), ids=lambda seed: f"seed{seed}")
def test_broken_disk_takes_directory_offline_without_data_loss(seed: int) -> None:
    story = Story(seed)
    for _ in range(20):
        story.step()
    story.disk.fault = lambda operation, path: io_error(path) if operation == "append" else None
    with pytest.raises(ApiError) as failure:
        append(story.log, batch(3), leader_epoch=story.model.epoch)
    assert failure.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError) as failure:
        story.manager.get(TP)
    assert failure.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(story.manager.online_dirs()) == 1
    story.disk.fault = lambda operation, path: None
    story.disk.kill()
    story._start()
    story.check()

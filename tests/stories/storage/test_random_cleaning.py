"""The whole log under compaction: random stories of writes, cleanings, restarts and deaths against
the full history.

Each seed is a story on a simulated disk. After every step a read_committed consumer that starts at
the beginning ends with the history's last values, and so does a reader that has been on its way
since before the cleanings. A failing seed runs alone: `pytest -k 'story[seed7]'`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from millstream.sim.world.disk import SimDisk
from millstream.wire.records.batch import parse_header, read_records
from millstream.wire.records.compression import Codec
from support.log.cleaner_store import COMPACT, HOUR_MS, StepWorker, Store, clean, dies_at

SEEDS = 60
STEPS = 50
RETENTION_MS = 10 * HOUR_MS
KEYS = [f"key-{i}" for i in range(8)]
TRANSACTIONAL = (20, 30)


@dataclass
class Written:
    """A record of the history; `state` is that of its transaction."""

    offset: int
    key: str
    value: str | None
    written_ms: int
    state: list[str]


@dataclass
class Reader:
    """A consumer in the middle of the log, which lives no longer than a tombstone is promised to be
    there.
    """

    born_ms: int
    offset: int = 0
    seen: dict[str, tuple[int, str | None]] = field(default_factory=dict)

    def read_some(self, store: Store, max_bytes: int) -> bool:
        log = store.log()
        found = log.read(self.offset, max_bytes, upto=log.log_end_offset, at_least_one=True)
        if found.slice is None:
            return False
        data, at = found.slice.read(), 0
        while at < len(data):
            header = parse_header(data, at)
            for record in (
                read_records(data[at : at + header.size], max_bytes=1 << 20)
                if not header.control
                else ()
            ):
                value = None if record.value is None else record.value.decode()
                self.seen[(record.key or b"").decode()] = (record.offset, value)
            at += header.size
        self.offset = found.end_offset
        return True


class Story:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = SimDisk(seed)
        config = replace(
            COMPACT,
            delete_retention_ms=RETENTION_MS,
            segment_bytes=self.dice.choice((600, 2000, 1 << 20)),
            index_interval_bytes=self.dice.choice((1, 200, 4096)),
        )
        self.store = Store("/data", config=config, files=self.disk, producer_expiration_ms=10**12)
        self.store.log()
        self.history: list[Written] = []
        self.open: dict[
            int, list[str]
        ] = {}  # transactional producer -> the state its records share
        self.cleanings: list[int] = []
        self.reader = Reader(self.store.now_ms)
        self.deaths = 0

    # -- steps

    def step(self) -> None:
        write, end, roll, clean_ = self.write, self.end, self.roll, self.clean
        steps = (
            write,
            write,
            write,
            write,
            end,
            end,
            roll,
            roll,
            clean_,
            clean_,
            self.restart,
            self.die_cleaning,
        )
        self.dice.choice(steps)()
        self.store.now_ms += self.dice.choice((0, 0, 0, HOUR_MS, 3 * HOUR_MS))

    def write(self) -> None:
        pid = self.dice.choice((-1, 1, *TRANSACTIONAL))
        pairs = [
            (self.dice.choice(KEYS), None if self.dice.random() < 0.25 else str(self.dice.random()))
            for _ in range(self.dice.randint(1, 6))
        ]
        first = self.store.put(
            *pairs, pid=pid, txn=pid in TRANSACTIONAL, codec=self.dice.choice(list(Codec))
        )
        state = self.open.setdefault(pid, ["open"]) if pid in TRANSACTIONAL else ["committed"]
        now_ms = self.store.now_ms
        self.history += [
            Written(first + i, key, value, now_ms, state) for i, (key, value) in enumerate(pairs)
        ]

    def end(self) -> None:
        for pid in list(self.open):
            commit = self.dice.random() < 0.5
            self.store.end_transaction(pid, commit=commit)
            self.open.pop(pid)[0] = "committed" if commit else "aborted"

    def roll(self) -> None:
        self.store.roll()

    def clean(self, keys: int = 0) -> bool:
        keys = keys or self.dice.choice((2, 5, 1000))
        report = clean(
            self.store, StepWorker(self.disk), dedupe_buffer_bytes=24 * keys, load_factor=1.0
        )
        if report is not None:
            self.cleanings.append(self.store.now_ms)
        return report is not None

    def restart(self) -> None:
        """A shutdown, the death of the process, or that of the machine once
        everything is on disk.
        """
        before = self.store.producers()
        how = self.dice.choice(("shutdown", "process", "machine"))
        if how == "shutdown":
            self.store.close()
        elif how == "process":
            self.disk.kill()
        else:
            self.store.log().flush()
            self.disk.crash()
        self.store.open()
        assert self.store.producers() == before

    def die_cleaning(self) -> None:
        """Somewhere in a cleaning; what was flushed before must be there again."""
        self.store.log().flush()
        before = self.store.producers()
        if dies_at(
            self.store,
            self.disk,
            self.dice.randint(1, 80),
            dedupe_buffer_bytes=24 * 5,
            load_factor=1.0,
        ):
            self.deaths += 1
        self.cleanings.append(self.store.now_ms)
        self.dice.choice((self.disk.kill, self.disk.crash))()
        self.store.open()
        assert self.store.producers() == before

    # -- checks

    def check(self) -> None:
        log = self.store.log()
        expected = self.last_values(("committed",), log.last_stable_offset)
        found = self.store.values(committed=True)
        for key, written in expected.items():
            if key in found or written.value is not None:
                assert found.get(key, "missing") == written.value, key
            else:
                assert self.may_be_forgotten(written), key
        assert found.keys() <= expected.keys()

    def last_values(self, states: tuple[str, ...], end: int) -> dict[str, Written]:
        return {w.key: w for w in self.history if w.state[0] in states and w.offset < end}

    def may_be_forgotten(self, written: Written) -> bool:
        now_ms = self.store.now_ms
        return any(
            written.written_ms <= at and at + RETENTION_MS <= now_ms for at in self.cleanings
        )

    def read_on(self) -> None:
        """The slow reader takes a few batches. It sees aborted records too, and of keys whose last
        record was aborted it may know only an older one than the log held: those are left out of
        the comparison.
        """
        if self.store.now_ms - self.reader.born_ms >= RETENTION_MS // 2:
            while self.reader.read_some(self.store, 1 << 20):
                pass
            self.compare_reader()
            self.reader = Reader(self.store.now_ms)
        self.reader.read_some(self.store, self.dice.choice((1, 300, 1000)))

    def compare_reader(self) -> None:
        log = self.store.log()
        committed = self.last_values(("committed",), log.log_end_offset)
        last = self.last_values(("committed", "open", "aborted"), log.log_end_offset)
        for key, written in committed.items():
            if last[key] is not written:
                continue
            seen = self.reader.seen.get(key)
            if seen is not None or written.value is not None:
                assert seen == (written.offset, written.value), key


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_story(seed: int):
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
        story.check()
        story.read_on()
    story.end()
    story.roll()
    for _ in range(4):
        story.store.now_ms += RETENTION_MS
        story.store.put(("last", "1"))
        story.roll()
        while story.clean(keys=1000):
            pass
    story.history.append(
        Written(story.store.log().log_end_offset - 1, "last", "1", 0, ["committed"])
    )
    story.check()
    left = story.store.read()
    assert len(left) == len({record.key for record in left}), "one record of each key"
    assert all(record.value is not None for record in left), "and no tombstone"
    assert story.store.leftovers() == []
    story.store.close()


def test_stories_die_in_the_middle_of_cleanings():
    """A run that did too little does not count."""
    deaths = 0
    for seed in range(10):
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        deaths += story.deaths
    assert deaths >= 5

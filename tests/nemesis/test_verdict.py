"""The verdict over a real run: what clients wrote to files and what lies in logs; every planted
anomaly is found, a clean run has none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.sim.checks.history import (
    ASSIGN,
    FAIL,
    INFO,
    OK,
    PEEK,
    POLL,
    SEND,
    TXN,
    Mop,
    Op,
    Poll,
    Send,
)
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.state_checks import Batch, OffsetEvent, Replica
from millstream.sim.checks.verdict import Evidence, judge
from millstream.wire.records.batch import Record, build_batch
from nemesis.disk import replicas
from nemesis.records import Recorder, Records, decode, encode
from nemesis.resent import sent_again, without_sent_again

K = "data-0"


class Story:
    """A run as its clients would have written it down, and as its logs would lie on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recorders: dict[str, Recorder] = {}
        self.batches: list[Batch] = []
        self.other_batches: list[Batch] | None = None
        self.third: Replica | None = None
        self.copies: list[Batch] = []
        self.offsets: list[OffsetEvent] = []
        self.group_reads: set[str] = set()

    def told(
        self, process: str, f: str, outcome: str, *value: Mop, commit_requested: float | None = None
    ) -> Op:
        recorder = self._recorders.get(process)
        if recorder is None:
            recorder = self._recorders[process] = Recorder(
                self._directory / f"{process}.jsonl", process
            )
        op = recorder.invoke(f, value)
        if outcome:
            recorder.complete(op, outcome, value, commit_requested=commit_requested)
        return op

    def send(
        self, process: str, *rows: tuple[str, int | None], outcome: str = OK, f: str = SEND
    ) -> None:
        self.told(process, f, outcome, *(Send(K, value, offset) for value, offset in rows))

    def poll(self, process: str, *rows: tuple[int, str], f: str = POLL) -> None:
        self.told(process, f, OK, Poll({K: list(rows)}))

    def commit(self, started: float, offset: int, *, fetched: bool = False) -> None:
        self.offsets.append(
            OffsetEvent(started, started + 0.5, "readers", K, offset, fetched, "member")
        )

    def verdict(self) -> set[str]:
        records = Records(sorted(self._directory.glob("*.jsonl")))
        ours = Replica(0, 7, 0, tuple(self.batches))
        theirs = Replica(
            1, 7, 0, tuple(self.batches if self.other_batches is None else self.other_batches)
        )
        logs = {K: [ours, theirs, *([self.third] if self.third is not None else [])]}
        evidence = Evidence(records.ops, logs, self.offsets, group_reads={K: self.group_reads})
        if self.copies:
            logs = {**evidence.logs, "copies-0": [Replica(0, 7, 0, tuple(self.copies))]}
            evidence = replace(evidence, logs=logs, copies={K: "copies-0"}, copied_completely=True)
        return {violation.kind for violation in judge(evidence)}


def batch(base: int, *values: str, producer: int = 1, sequence: int = -1, **more: object) -> Batch:
    made = Batch(
        base, base + max(len(values), 1) - 1, 0, producer, 0, sequence, False, None, values
    )
    return made._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Two idempotent producers, a committed and an aborted transaction, one outcome that nobody
    knows, two readers, a group.
    """
    made = Story(tmp_path)
    made.send("send-0.1", ("a", 0), ("b", 1))
    made.send("txn-0.1", ("c", 2), f=TXN)
    made.send("txn-0.1", ("x", None), outcome=FAIL, f=TXN)
    made.send("send-1.1", ("d", None), outcome=INFO)
    made.poll("read-0.1", (0, "a"), (1, "b"))
    made.poll("read-0.1", (2, "c"), (6, "d"))
    made.poll("audit", (0, "a"), (1, "b"), (2, "c"), (6, "d"))
    made.commit(1.0, 2)
    made.commit(2.0, 7)
    made.commit(3.0, 7, fetched=True)
    made.group_reads = {"a", "b", "c", "d"}
    made.batches = [
        batch(0, "a", "b", sequence=0),
        batch(2, "c", producer=2, sequence=0, transactional=True),
        batch(3, producer=2, transactional=True, commit=True),
        batch(4, "x", producer=2, sequence=1, transactional=True),
        batch(5, producer=2, transactional=True, commit=False),
        batch(6, "d", producer=3, sequence=0),
    ]
    return made


def test_a_clean_run_has_no_violation(story: Story) -> None:
    assert story.verdict() == set()


def lose(story: Story) -> None:
    """Acknowledged, and in no log."""
    story.send("send-0.1", ("e", 7))


def lose_the_middle(story: Story) -> None:
    story.send("send-2.1", ("e", 3))


def give_an_offset_twice(story: Story) -> None:
    story.poll("read-1.1", (0, "a"), (1, "another"))


def duplicate(story: Story) -> None:
    story.poll("read-1.1", (7, "a"))


def read_what_is_aborted(story: Story) -> None:
    story.poll("read-1.1", (4, "x"))


def read_before_the_commit(story: Story) -> None:
    story.told("copy-0.1", TXN, OK, Send(K, "e", 8), Poll({K: [(8, "e")]}))


def read_what_is_open(story: Story) -> None:
    """In a transaction that never ends."""
    story.batches.append(batch(7, "o", producer=4, sequence=0, transactional=True))
    story.poll("read-1.1", (7, "o"))


def read_before_the_commit_was_asked_for(story: Story) -> None:
    story.poll("read-1.1", (7, "e"))
    story.told("txn-1.1", TXN, OK, Send(K, "e", 7), commit_requested=time.monotonic() + 1)


def lose_what_was_read(story: Story) -> None:
    """Nobody was told that it is there, and somebody has seen it."""
    story.send("send-1.1", ("u", None), outcome=INFO)
    story.poll("read-1.1", (7, "u"))


def let_the_leader_lose(story: Story) -> None:
    """The follower still has it."""
    story.other_batches = list(story.batches)
    story.batches = story.batches[:-1]
    story.send("send-5.1", ("d", 6))


def let_two_replicas_differ_behind_a_third(story: Story) -> None:
    let_replicas_differ(story)
    story.third = Replica(2, 0, 0, ())


def skip(story: Story) -> None:
    story.poll("read-1.1", (0, "a"))
    story.poll("read-1.1", (2, "c"))


def go_back(story: Story) -> None:
    story.poll("read-1.1", (1, "b"))
    story.poll("read-1.1", (0, "a"))


def reorder(story: Story) -> None:
    story.send("send-3.1", ("f", 9), ("e", 8))
    story.poll("read-1.1", (8, "e"), (9, "f"))


def forget_a_commit(story: Story) -> None:
    story.commit(4.0, 2, fetched=True)


def miss_in_the_group(story: Story) -> None:
    story.group_reads.discard("b")


def let_replicas_differ(story: Story) -> None:
    story.other_batches = [*story.batches[:1], batch(2, "other"), *story.batches[2:]]


def append_twice(story: Story) -> None:
    story.batches = [*story.batches, batch(7, "d", producer=3, sequence=0)]


def copy_twice(story: Story) -> None:
    rows = ["a|1", "b|1", "c|1", "d|1", "a|2"]
    story.copies = [batch(n, row, producer=-1) for n, row in enumerate(rows)]


def copy_half(story: Story) -> None:
    story.copies = [batch(0, "a|1", producer=-1)]


def copy_in_another_order(story: Story) -> None:
    story.copies = [
        batch(n, row, producer=-1) for n, row in enumerate(["b|1", "a|1", "c|1", "d|1"])
    ]


@pytest.mark.parametrize(
    "kind, plant",
    [
        ("unseen", lose),
        ("acknowledged-lost", lose),
        ("lost-write", lose_the_middle),
        ("inconsistent-offsets", give_an_offset_twice),
        ("duplicate", duplicate),
        ("G1a", read_what_is_aborted),
        ("aborted-read", read_what_is_aborted),
        ("precommitted-read", read_before_the_commit),
        ("open-read", read_what_is_open),
        ("dirty-read", read_before_the_commit_was_asked_for),
        ("read-lost", lose_what_was_read),
        ("acknowledged-lost", let_the_leader_lose),
        ("replicas-differ", let_two_replicas_differ_behind_a_third),
        ("poll-skip", skip),
        ("nonmonotonic-poll", go_back),
        ("nonmonotonic-send", reorder),
        ("commit-back", forget_a_commit),
        ("group-missed", miss_in_the_group),
        ("replicas-differ", let_replicas_differ),
        ("sequence", append_twice),
        ("copied-twice", copy_twice),
        ("not-copied", copy_half),
        ("copied-out-of-order", copy_in_another_order),
    ],
)
def test_a_planted_anomaly_is_found(
    story: Story, kind: str, plant: Callable[[Story], None]
) -> None:
    plant(story)
    assert kind in story.verdict()


def test_what_kafka_does_not_promise_is_no_violation(story: Story) -> None:
    """An unknown outcome, an aborted record seen by who reads everything, a position that was set
    anew.
    """
    story.send("send-4.1", ("never answered", None), outcome="")
    story.poll("peek-0.1", (4, "x"), f=PEEK)
    story.told("read-0.1", ASSIGN, OK)
    story.poll("read-0.1", (0, "a"))
    assert story.verdict() == set()


def test_a_client_killed_in_the_middle_of_a_line_has_written_the_lines_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "send-0.jsonl"
    recorder = Recorder(path, "send-0.1")
    first = recorder.invoke(SEND, [Send(K, "a")])
    recorder.complete(first, OK, [Send(K, "a", 0)])
    recorder.invoke(SEND, [Send(K, "b")])
    with path.open("a") as file:
        file.write('{"process": "send-0.1", "op": [2, "o')
    assert [(op.type, op.value) for op in Records([path]).ops] == [
        (OK, (Send(K, "a", 0),)),
        (INFO, (Send(K, "b"),)),
    ]


def test_what_a_client_writes_twice_under_two_epochs_is_its_own_doing() -> None:
    """Twice under one epoch is not."""
    bumped = [batch(0, "a", sequence=5), batch(1, "a", sequence=0, producer_epoch=1)]
    same = [batch(2, "b", sequence=1), batch(3, "b", sequence=2)]
    values = sent_again({K: Replica(0, 4, 0, (*bumped, *same))})
    assert values == {"a"}
    ours = Violation("duplicate", K, "b is at the offsets [2, 3]")
    theirs = [
        Violation("duplicate", K, "a is at the offsets [0, 1]"),
        Violation("copied-twice", "", "a: 2 times"),
    ]
    assert without_sent_again([ours, *theirs], values) == [ours]


def test_a_history_without_times_of_commits_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "txn-0.jsonl"
    path.write_text(
        '{"process": "txn-0.1", "op": [1, "ok", "txn", [["data-0", "a", 0]], 2.0, 1.0, ""]}\n'
    )
    (op,) = Records([path]).ops
    assert op.commit_requested is None and op.value == (Send(K, "a", 0),)


def test_the_leader_counts_and_where_nobody_knows_it_the_longest_log(tmp_path: Path) -> None:
    for node, count in ((0, 1), (1, 2)):
        directory = tmp_path / str(node) / K
        directory.mkdir(parents=True)
        made = [bytearray(build_batch([Record(0, 1, None, b"v", ())])) for _ in range(count)]
        for offset, data in enumerate(made):
            data[:8] = offset.to_bytes(8)
        (directory / "00.log").write_bytes(b"".join(made))
    directories = {0: tmp_path / "0", 1: tmp_path / "1"}
    for leaders, order in (({K: 0}, [0, 1]), ({K: 1}, [1, 0]), ({}, [1, 0])):
        found = replicas(directories, {"data": 1}, leaders)
        assert [log.node for log in found[K]] == order


def test_padding_is_not_part_of_a_value() -> None:
    assert decode(encode("send-0.1:7", 40)) == "send-0.1:7"
    assert len(encode("v", 100)) == 102


def test_what_is_told_of_an_offset_is_no_commit(tmp_path: Path) -> None:
    path = tmp_path / "read-0.jsonl"
    row = {
        "process": "read-0.1",
        "told": "truncated",
        "time": 1.0,
        "key": "data-0",
        "offset": 7,
        "error": "gone",
    }
    path.write_text(json.dumps(row) + "\n")
    records = Records([path])
    assert records.offsets == []
    assert [(told.what, told.more["offset"]) for told in records.told] == [("truncated", 7)]

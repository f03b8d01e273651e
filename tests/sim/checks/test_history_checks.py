"""Every check of a history detects its violation, and a clean history passes all of them."""

from __future__ import annotations

from collections.abc import Sequence

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
    History,
    Mop,
    Op,
    Poll,
    Send,
)
from millstream.sim.checks.history_checks import Violation, check_history

K = "k-0"
Step = tuple[str, str, str, Sequence[Mop]]


def send(process: str, *rows: tuple[str, int | None], outcome: str = OK, f: str = SEND) -> Step:
    return process, f, outcome, [Send(K, value, offset) for value, offset in rows]


def poll(process: str, *rows: tuple[int, str], outcome: str = OK, f: str = POLL) -> Step:
    return process, f, outcome, [Poll({K: list(rows)})]


def history(*steps: Step, rebalanced: Sequence[str] = ()) -> list[Op]:
    steps_so_far = History()
    for time, (process, f, outcome, value) in enumerate(steps):
        op = steps_so_far.invoke(process, f, value, time)
        steps_so_far.complete(op, outcome, value, time + 0.5, rebalanced=rebalanced)
    return steps_so_far.completions()


def kinds(violations: list[Violation]) -> list[str]:
    return [violation.kind for violation in violations]


CLEAN = [
    send("p", ("a", 0), ("b", 1)),
    send("q", ("c", 3), f=TXN),  # a marker lies at 2
    send("q", ("x", None), outcome=FAIL, f=TXN),
    send("p", ("d", None), outcome=INFO),
    poll("r", (0, "a"), (1, "b")),
    poll("r", (3, "c")),
    poll("s", (0, "a"), (1, "b"), (3, "c"), (5, "d")),
]


def test_a_clean_history_has_no_violation() -> None:
    assert check_history(history(*CLEAN)) == []


@pytest.mark.parametrize(
    "kind, steps",
    [
        ("inconsistent-offsets", [*CLEAN, poll("t", (0, "a"), (1, "other"))]),
        ("inconsistent-offsets", [*CLEAN, send("t", ("e", 3))]),
        ("duplicate", [*CLEAN, poll("t", (5, "d"), (6, "a"))]),
        ("G1a", [*CLEAN, poll("t", (4, "x"))]),
        (
            "lost-write",
            [send("p", ("a", 0), ("b", 1)), send("p", ("c", 2)), poll("r", (0, "a"), (2, "c"))],
        ),
        ("precommitted-read", [("p", TXN, OK, [Send(K, "a", 0), Poll({K: [(0, "a")]})])]),
        ("poll-skip", [*CLEAN, poll("t", (0, "a")), poll("t", (3, "c"))]),
        (
            "nonmonotonic-poll",
            [*CLEAN, poll("t", (0, "a"), (1, "b")), poll("t", (1, "b"), (3, "c"))],
        ),
        ("int-poll-skip", [*CLEAN, poll("t", (0, "a"), (3, "c"))]),
        ("int-nonmonotonic-poll", [*CLEAN, poll("t", (1, "b"), (0, "a"))]),
        (
            "nonmonotonic-send",
            [*CLEAN, send("t", ("f", 9)), send("t", ("e", 8)), poll("u", (8, "e"), (9, "f"))],
        ),
        ("unseen", [*CLEAN, send("t", ("e", 9))]),
    ],
)
def test_planted_violation_is_reported(kind: str, steps: list[Step]) -> None:
    assert kind in kinds(check_history(history(*steps)))


def read_and_committed(
    read_at: float, commit_requested: float | None, outcome: str, f: str = POLL
) -> list[Op]:
    """A transaction from 0 to 5, and a reader that has its record at a time in between."""
    recorded = History()
    writing = recorded.invoke("p", TXN, [Send(K, "a")], 0.0)
    reading = recorded.invoke("r", f, [], read_at if f == TXN else 0.5)
    recorded.complete(reading, OK, [Poll({K: [(0, "a")]})], 4.5 if f == TXN else read_at)
    recorded.complete(writing, outcome, [Send(K, "a", 0)], 5.0, commit_requested=commit_requested)
    return recorded.completions()


def test_read_before_the_commit_request_is_a_dirty_read() -> None:
    for outcome in (OK, INFO):
        assert kinds(check_history(read_and_committed(1.0, 2.0, outcome))) == ["dirty-read"]
    assert kinds(check_history(read_and_committed(1.0, 2.0, OK, f=TXN))) == ["dirty-read"]


def test_requested_commit_may_have_happened() -> None:
    for outcome in (OK, INFO):
        assert check_history(read_and_committed(3.0, 2.0, outcome)) == []
    assert check_history(read_and_committed(3.0, 2.0, OK, f=TXN)) == []
    assert check_history(read_and_committed(1.0, None, INFO)) == []  # at an unknown time
    assert check_history(read_and_committed(1.0, 2.0, INFO, f=PEEK)) == []


def test_transactions_that_read_each_other_are_a_cycle() -> None:
    first: Step = ("p", TXN, OK, [Send("a-0", "1", 0), Poll({"b-0": [(0, "2")]})])
    two: Step = ("q", TXN, OK, [Send("b-0", "2", 0), Poll({"a-0": [(0, "1")]})])
    assert kinds(check_history(history(first, two))) == ["G1c"]
    three: Step = ("q", TXN, OK, [Send("b-0", "2", 0), Poll({"c-0": [(0, "9")]})])
    assert kinds(check_history(history(first, three))) == ["unseen"]


def test_unknown_outcome_is_no_violation_until_it_is_read() -> None:
    """An info operation counts as committed as soon as any part of it is read."""
    unknown = send("p", ("a", 0), ("b", 1), outcome=INFO, f=TXN)
    later = send("q", ("c", 2))
    assert check_history(history(unknown, later, poll("r", (2, "c")))) == []
    half = check_history(history(unknown, later, poll("r", (0, "a"), (2, "c"))))
    assert "lost-write" in kinds(half)


def test_read_uncommitted_may_see_aborted_but_not_two_values() -> None:
    assert check_history(history(*CLEAN, poll("t", (4, "x"), f=PEEK))) == []
    assert kinds(check_history(history(*CLEAN, poll("t", (3, "x"), f=PEEK)))) == [
        "inconsistent-offsets"
    ]


def test_an_aborted_record_between_two_polls_is_not_skipped() -> None:
    steps = [*CLEAN, poll("t", (4, "x"), f=PEEK), poll("u", (3, "c")), poll("u", (5, "d"))]
    assert check_history(history(*steps)) == []


def test_reassigned_consumer_may_go_back() -> None:
    again = [*CLEAN, poll("t", (0, "a"), (1, "b")), ("t", ASSIGN, OK, ()), poll("t", (0, "a"))]
    assert check_history(history(*again)) == []
    assert (
        check_history(history(*CLEAN, poll("t", (3, "c")), poll("t", (0, "a")), rebalanced=[K]))
        == []
    )


def test_an_operation_that_never_completed_may_have_happened() -> None:
    recorded = History()
    recorded.invoke("p", SEND, [Send(K, "a")], 0.0)
    op = recorded.invoke("r", POLL, [], 1.0)
    recorded.complete(op, OK, [Poll({K: [(0, "a")]})], 2.0)
    assert check_history(recorded.completions()) == []
    assert recorded.completions()[-1].type == INFO


def test_no_record_is_unseen_without_final_reads() -> None:
    assert check_history(history(send("p", ("a", 0))), final_reads=False) == []

"""The verdict over a whole run finds what no single check is for."""

from __future__ import annotations

from millstream.sim.checks.history import FAIL, OK, POLL, SEND, TXN, History, Poll, Send
from millstream.sim.checks.state_checks import Batch, OffsetEvent, Replica
from millstream.sim.checks.verdict import Evidence, judge

K, COPY = "k-0", "copies-0"


def replica(*values: str, node: int = 1) -> Replica:
    return Replica(
        node, 100, 0, [Batch(i, i, 0, -1, -1, -1, False, None, (v,)) for i, v in enumerate(values)]
    )


def evidence(**more: object) -> Evidence:
    history = History()
    sent = history.invoke("p", SEND, [Send(K, "a")], 0.0)
    history.complete(sent, OK, [Send(K, "a", 0)], 0.5)
    read = history.invoke("r", POLL, [], 1.0)
    history.complete(read, OK, [Poll({K: [(0, "a")]})], 1.5)
    logs = {K: [replica("a")], COPY: [replica("a|1")]}
    return Evidence(history.completions(), logs, **more)  # type: ignore[arg-type]


def kinds(found: Evidence) -> list[str]:
    return [violation.kind for violation in judge(found)]


def test_a_clean_run_passes() -> None:
    assert kinds(evidence(copies={K: COPY})) == []


def test_unread_record_below_the_group_offset_is_found() -> None:
    committed = [OffsetEvent(1.0, 1.1, "readers", K, 1, False)]
    assert kinds(evidence(offsets=committed, group_reads={K: {"a"}})) == []
    assert kinds(evidence(offsets=committed)) == ["group-missed"]


def test_copies_of_nothing_and_second_copies_are_found() -> None:
    found = evidence(copies={K: COPY})
    found.logs = {K: [replica("a")], COPY: [replica("a|1", "a|2", "z|1")]}
    assert set(kinds(found)) == {"copied-twice", "copied-from-nothing"}


def test_an_acknowledged_record_that_no_log_holds_is_found() -> None:
    found = evidence()
    found.logs = {K: [replica()]}
    assert kinds(found) == ["acknowledged-lost", "read-lost"]
    found.logs = {}
    assert kinds(found) == ["acknowledged-lost", "read-lost"]


def test_record_lost_by_the_leader_is_lost() -> None:
    found = evidence()
    found.logs = {K: [replica()._replace(high_watermark=0), replica("a", node=2)]}
    assert kinds(found) == ["acknowledged-lost", "read-lost"]
    found.logs = {K: [replica("a", node=2), replica()._replace(high_watermark=0)]}
    assert kinds(found) == []


def test_a_topic_that_is_gone_breaks_no_check() -> None:
    committed = [OffsetEvent(1.0, 1.1, "readers", K, 1, False)]
    found = evidence(offsets=committed, group_reads={K: {"a"}}, copies={K: COPY})
    found.logs = {}
    assert set(kinds(found)) == {"acknowledged-lost", "read-lost"}


def test_reads_of_a_transaction_count_whatever_its_outcome() -> None:
    history = History()
    copying = history.invoke("c", TXN, [Poll({K: [(0, "a")]})], 1.0)
    history.complete(copying, FAIL, [Poll({K: [(0, "a")]})], 2.0)
    open_one = Batch(0, 0, 0, 7, 0, 0, True, None, ("a",))
    logs = {K: [Replica(1, 1, 0, [open_one])]}
    assert kinds(Evidence(history.completions(), logs)) == ["open-read"]

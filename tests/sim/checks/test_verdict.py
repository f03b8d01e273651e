"""The verdict over a whole run detects violations that no single check covers."""

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


def kinds(collected: Evidence) -> list[str]:
    return [violation.kind for violation in judge(collected)]


def test_a_clean_run_passes() -> None:
    assert kinds(evidence(copies={K: COPY})) == []


def test_unread_record_below_the_group_offset_is_reported() -> None:
    committed = [OffsetEvent(1.0, 1.1, "readers", K, 1, False)]
    assert kinds(evidence(offsets=committed, group_reads={K: {"a"}})) == []
    assert kinds(evidence(offsets=committed)) == ["group-missed"]


def test_invented_and_duplicated_copies_are_reported() -> None:
    collected = evidence(copies={K: COPY})
    collected.logs = {K: [replica("a")], COPY: [replica("a|1", "a|2", "z|1")]}
    assert set(kinds(collected)) == {"copied-twice", "copied-from-nothing"}


def test_acknowledged_record_missing_in_every_log_is_reported() -> None:
    collected = evidence()
    collected.logs = {K: [replica()]}
    assert kinds(collected) == ["acknowledged-lost", "read-lost"]
    collected.logs = {}
    assert kinds(collected) == ["acknowledged-lost", "read-lost"]


def test_record_lost_by_the_leader_is_lost() -> None:
    collected = evidence()
    collected.logs = {K: [replica()._replace(high_watermark=0), replica("a", node=2)]}
    assert kinds(collected) == ["acknowledged-lost", "read-lost"]
    collected.logs = {K: [replica("a", node=2), replica()._replace(high_watermark=0)]}
    assert kinds(collected) == []


def test_deleted_topic_breaks_no_check() -> None:
    committed = [OffsetEvent(1.0, 1.1, "readers", K, 1, False)]
    collected = evidence(offsets=committed, group_reads={K: {"a"}}, copies={K: COPY})
    collected.logs = {}
    assert set(kinds(collected)) == {"acknowledged-lost", "read-lost"}


def test_reads_of_a_transaction_count_with_any_outcome() -> None:
    history = History()
    copying = history.invoke("c", TXN, [Poll({K: [(0, "a")]})], 1.0)
    history.complete(copying, FAIL, [Poll({K: [(0, "a")]})], 2.0)
    open_one = Batch(0, 0, 0, 7, 0, 0, True, None, ("a",))
    logs = {K: [Replica(1, 1, 0, [open_one])]}
    assert kinds(Evidence(history.completions(), logs)) == ["open-read"]

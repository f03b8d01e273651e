"""When flows start, are retried, give up and stop. No Spark."""

from __future__ import annotations

import pytest

from millstream.pipelines.run.jvm_failures import BROKEN_MAP, DEAD_JVM, LOST_WORKER, OUT_OF_MEMORY
from millstream.pipelines.run.supervisor import (
    MAX_HOLD_MS,
    OWN_SESSION,
    FlowState,
    Report,
    Restart,
    Start,
    State,
    Stop,
    Supervisor,
    backoff_ms,
    states,
)

SECOND = 1000


def two(**policy: object) -> Supervisor:
    return Supervisor.of([FlowState("a", **policy), FlowState("b", **policy)])  # type: ignore[arg-type]


def test_all_flows_start_at_once() -> None:
    made = two()
    assert made.tick(0) == [Start("a"), Start("b")]
    assert made.tick(1) == []


def test_a_flow_waits_for_what_it_reads_when_run_once() -> None:
    made = Supervisor.of([FlowState("a"), FlowState("b", needs=frozenset({"a"}))])
    assert made.tick(0) == [Start("a")]
    assert made.finished("a", 5) == [Report("a", "done")]
    assert made.tick(6) == [Start("b")]
    assert made.finished("b", 9) == [Report("b", "done")]
    assert made.ended and not made.failed


def following() -> Supervisor:
    return Supervisor.of([FlowState("a"), FlowState("b", follows=frozenset({"a"}))])


def test_new_flow_starts_after_the_first_batch_of_the_flow_it_follows() -> None:
    made = following()
    assert made.tick(0) == [Start("a")]
    assert made.tick(5 * SECOND) == []
    made.batch_done("a")
    assert made.tick(6 * SECOND) == [Start("b")]


def test_new_flow_is_not_held_longer_than_the_limit() -> None:
    made = following()
    made.tick(1)
    assert made.tick(MAX_HOLD_MS) == []
    assert made.tick(MAX_HOLD_MS + 1) == [Start("b")]


@pytest.mark.parametrize("permanent", [True, False])
def test_failure_of_the_followed_flow_holds_nothing(permanent: bool) -> None:
    made = following()
    made.independent = True
    made.tick(0)
    made.query_failed("a", "broken", permanent=permanent, now_ms=10)
    assert made.tick(11) == [Start("b")]


def test_flow_follows_flows_that_are_not_part_of_the_run() -> None:
    made = Supervisor.of([FlowState("b", follows=frozenset({"a"}))])
    assert made.tick(0) == [Start("b")]


def test_a_failing_flow_is_tried_again_after_a_growing_pause() -> None:
    made = two()
    made.tick(0)
    assert made.query_failed("a", "broken", permanent=False, now_ms=10) == [
        Report("a", "retrying", "broken", 1000)
    ]
    assert made.tick(1009) == []
    assert made.tick(1010) == [Start("a")]
    assert made.query_failed("a", "broken", permanent=False, now_ms=1020) == [
        Report("a", "retrying", "broken", 2000)
    ]
    assert states(made) == {"a": "retrying", "b": "running"}


def test_tries_are_counted_from_the_last_good_minute() -> None:
    made = two(retries=1)
    made.tick(0)
    made.query_failed("a", "x", permanent=False, now_ms=10)
    made.tick(1010)
    assert made.query_failed("a", "x", permanent=False, now_ms=1010 + 60 * SECOND) == [
        Report("a", "retrying", "x", 1000)
    ]


def test_flow_that_runs_well_for_a_minute_forgets_its_failures() -> None:
    made = two()
    made.tick(0)
    made.query_failed("a", "x", permanent=False, now_ms=10)
    made.tick(1010)
    made.tick(1010 + 59 * SECOND)
    assert (made.flows["a"].failures, made.flows["a"].reason) == (1, "x")
    made.tick(1010 + 60 * SECOND)
    assert (made.flows["a"].failures, made.flows["a"].reason) == (0, "")


def test_a_flow_that_fails_too_often_stops_the_rest() -> None:
    made = two(retries=1)
    made.tick(0)
    made.query_failed("a", "x", permanent=False, now_ms=0)
    made.tick(1000)
    assert made.query_failed("a", "x", permanent=False, now_ms=1001) == [
        Report("a", "failed", "x"),
        Stop("b"),
    ]
    assert made.finished("b", 1002) == [Report("b", "stopped")]
    assert made.ended and [flow.name for flow in made.failed] == ["a"]


@pytest.mark.parametrize("how", [{"permanent": True}, {"permanent": False}])
def test_what_another_try_cannot_mend_and_the_policy_stop_end_at_once(how: dict[str, bool]) -> None:
    made = two(on_failure="retry" if how["permanent"] else "stop")
    made.tick(0)
    assert made.query_failed("a", "x", now_ms=1, **how) == [Report("a", "failed", "x"), Stop("b")]


def test_what_is_down_is_waited_for_without_using_up_tries() -> None:
    made = two(retries=1)
    made.tick(0)
    now_ms, pauses = 0, []
    for _ in range(9):
        (said,) = made.query_failed("a", "down", permanent=False, now_ms=now_ms, patient=True)
        assert isinstance(said, Report) and said.event == "retrying" and said.retry_in_ms is not None
        pauses.append(said.retry_in_ms // SECOND)
        now_ms += said.retry_in_ms
        assert Start("a") in made.tick(now_ms)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_stopping_ends_waiting_and_pausing_flows_and_starts_nothing() -> None:
    made = Supervisor.of([FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))])
    made.tick(0)
    made.query_failed("b", "x", permanent=False, now_ms=1)
    assert made.stop() == [Stop("a"), Report("b", "stopped"), Report("c", "stopped")]
    assert made.tick(10_000) == []
    assert made.query_failed("a", "interrupted", permanent=False, now_ms=2) == [
        Report("a", "stopped", "interrupted")
    ]
    assert made.ended and not made.failed
    assert made.flows["a"].state is State.STOPPED


def test_independent_flows_leave_each_other_alone() -> None:
    flows = [FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))]
    made = Supervisor.of(flows, independent=True)
    made.tick(0)
    assert made.query_failed("a", "broken", permanent=True, now_ms=1) == [Report("a", "failed", "broken")]
    assert made.tick(2) == [Start("c")]  # with what there is
    assert states(made) == {"a": "failed", "b": "running", "c": "running"}


def test_one_flow_can_be_stopped() -> None:
    made = two()
    made.tick(0)
    assert made.stop_flow("a") == [Stop("a")]
    assert made.stop_flow("a") == []
    assert made.finished("a", 5) == [Report("a", "stopped")]
    made.query_failed("b", "x", permanent=False, now_ms=6)
    assert made.stop_flow("b") == [Report("b", "stopped")]
    assert made.stop_flow("b") == []
    assert made.ended and not made.stopping


def test_pauses_have_an_end() -> None:
    assert [backoff_ms(n) for n in (1, 2, 3, 7, 100)] == [1000, 2000, 4000, 60_000, 60_000]


def test_fault_of_the_jvm_restarts_the_driver_instead_of_the_query() -> None:
    made = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=())
    made.tick(0)
    assert made.query_failed("a", "Task not serializable", permanent=False, now_ms=10, fault=BROKEN_MAP) == [
        Report("a", "retrying", BROKEN_MAP.text),
        Restart(BROKEN_MAP.text, 1, 1000),
        Report("a", "stopped"),
        Stop("b"),
    ]
    assert made.tick(100_000) == []
    assert made.query_failed("b", "same", permanent=False, now_ms=20, fault=BROKEN_MAP) == [
        Report("b", "stopped", "same")
    ]
    assert made.ended and not made.failed and made.restart == Restart(BROKEN_MAP.text, 1, 1000)


def test_restarts_are_limited_and_their_pauses_grow() -> None:
    now_ms, made_restarts = 10_000_000, []
    for before in ((), (now_ms - 9,), (now_ms - 10, now_ms - 9), (now_ms - 11, now_ms - 10, now_ms - 9)):
        made = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=before)
        made.tick(now_ms)
        said = made.query_failed("a", "x", permanent=False, now_ms=now_ms, fault=OUT_OF_MEMORY)
        made_restarts.append(made.restart and made.restart.in_ms)
    assert made_restarts == [1000, 10_000, 60_000, None]
    reason = f"{OUT_OF_MEMORY.text}; the JVM was restarted 3 times within the hour"
    assert said == [Report("a", "failed", reason), Stop("b")]


def test_restarts_of_an_hour_ago_do_not_count() -> None:
    made = Supervisor.of([FlowState("a")], restarts_ms=(1, 2, 3))
    made.tick(3_600_003)
    made.query_failed("a", "x", permanent=False, now_ms=3_600_003, fault=DEAD_JVM)
    assert made.restart == Restart(DEAD_JVM.text, 1, 1000)


def test_jvm_is_blamed_for_the_third_lost_worker_in_a_row() -> None:
    made = Supervisor.of([FlowState("a")], restarts_ms=())
    for number, fault in enumerate((LOST_WORKER, LOST_WORKER, None, LOST_WORKER, LOST_WORKER)):
        made.tick(number * 100 * SECOND)
        made.flows["a"].since_ms = number * 100 * SECOND
        made.query_failed("a", "x", permanent=False, now_ms=number * 100 * SECOND, fault=fault)
        assert made.restart is None
    made.tick(500 * SECOND)
    made.query_failed("a", "x", permanent=False, now_ms=500 * SECOND, fault=LOST_WORKER)
    assert made.restart is not None


def test_session_of_the_program_is_not_replaced() -> None:
    made = two()
    made.tick(0)
    assert made.query_failed("a", "x", permanent=False, now_ms=1, fault=BROKEN_MAP) == [
        Report("a", "failed", f"{BROKEN_MAP.text}; {OWN_SESSION}"),
        Stop("b"),
    ]
    made = two()
    made.tick(0)
    assert made.query_failed("a", "x", permanent=False, now_ms=1, fault=OUT_OF_MEMORY) == [
        Report("a", "retrying", "x", 1000)
    ]


@pytest.mark.parametrize("policy", [{"on_failure": "stop"}, {"permanent": True}])
def test_policy_stop_and_permanent_errors_do_not_restart(policy: dict[str, object]) -> None:
    permanent = bool(policy.pop("permanent", False))
    made = Supervisor.of([FlowState("a", **policy)], restarts_ms=())  # type: ignore[arg-type]
    made.tick(0)
    assert made.query_failed("a", "x", permanent=permanent, now_ms=1, fault=DEAD_JVM) == [
        Report("a", "failed", "x")
    ]
    assert made.restart is None

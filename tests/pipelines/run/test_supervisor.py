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
    supervisor = two()
    assert supervisor.tick(0) == [Start("a"), Start("b")]
    assert supervisor.tick(1) == []


def test_flow_waits_for_its_inputs_with_once() -> None:
    supervisor = Supervisor.of([FlowState("a"), FlowState("b", needs=frozenset({"a"}))])
    assert supervisor.tick(0) == [Start("a")]
    assert supervisor.finished("a", 5) == [Report("a", "done")]
    assert supervisor.tick(6) == [Start("b")]
    assert supervisor.finished("b", 9) == [Report("b", "done")]
    assert supervisor.ended and not supervisor.failed


def following() -> Supervisor:
    return Supervisor.of([FlowState("a"), FlowState("b", follows=frozenset({"a"}))])


def test_new_flow_starts_after_the_first_batch_of_the_flow_it_follows() -> None:
    supervisor = following()
    assert supervisor.tick(0) == [Start("a")]
    assert supervisor.tick(5 * SECOND) == []
    supervisor.batch_done("a")
    assert supervisor.tick(6 * SECOND) == [Start("b")]


def test_new_flow_waits_no_longer_than_the_limit() -> None:
    supervisor = following()
    supervisor.tick(1)
    assert supervisor.tick(MAX_HOLD_MS) == []
    assert supervisor.tick(MAX_HOLD_MS + 1) == [Start("b")]


@pytest.mark.parametrize("permanent", [True, False])
def test_failed_flow_does_not_delay_its_followers(permanent: bool) -> None:
    supervisor = following()
    supervisor.independent = True
    supervisor.tick(0)
    supervisor.query_failed("a", "broken", permanent=permanent, now_ms=10)
    assert supervisor.tick(11) == [Start("b")]


def test_followed_flow_outside_the_run_is_ignored() -> None:
    supervisor = Supervisor.of([FlowState("b", follows=frozenset({"a"}))])
    assert supervisor.tick(0) == [Start("b")]


def test_failing_flow_is_retried_with_backoff() -> None:
    supervisor = two()
    supervisor.tick(0)
    assert supervisor.query_failed("a", "broken", permanent=False, now_ms=10) == [
        Report("a", "retrying", "broken", 1000)
    ]
    assert supervisor.tick(1009) == []
    assert supervisor.tick(1010) == [Start("a")]
    assert supervisor.query_failed("a", "broken", permanent=False, now_ms=1020) == [
        Report("a", "retrying", "broken", 2000)
    ]
    assert states(supervisor) == {"a": "retrying", "b": "running"}


def test_retries_are_reset_after_a_good_minute() -> None:
    supervisor = two(retries=1)
    supervisor.tick(0)
    supervisor.query_failed("a", "x", permanent=False, now_ms=10)
    supervisor.tick(1010)
    assert supervisor.query_failed("a", "x", permanent=False, now_ms=1010 + 60 * SECOND) == [
        Report("a", "retrying", "x", 1000)
    ]


def test_failures_are_reset_after_a_good_minute() -> None:
    supervisor = two()
    supervisor.tick(0)
    supervisor.query_failed("a", "x", permanent=False, now_ms=10)
    supervisor.tick(1010)
    supervisor.tick(1010 + 59 * SECOND)
    assert (supervisor.flows["a"].failures, supervisor.flows["a"].reason) == (1, "x")
    supervisor.tick(1010 + 60 * SECOND)
    assert (supervisor.flows["a"].failures, supervisor.flows["a"].reason) == (0, "")


def test_flow_without_retries_left_stops_the_others() -> None:
    supervisor = two(retries=1)
    supervisor.tick(0)
    supervisor.query_failed("a", "x", permanent=False, now_ms=0)
    supervisor.tick(1000)
    assert supervisor.query_failed("a", "x", permanent=False, now_ms=1001) == [
        Report("a", "failed", "x"),
        Stop("b"),
    ]
    assert supervisor.finished("b", 1002) == [Report("b", "stopped")]
    assert supervisor.ended and [flow.name for flow in supervisor.failed] == ["a"]


@pytest.mark.parametrize("how", [{"permanent": True}, {"permanent": False}])
def test_permanent_errors_and_policy_stop_are_not_retried(how: dict[str, bool]) -> None:
    supervisor = two(on_failure="retry" if how["permanent"] else "stop")
    supervisor.tick(0)
    assert supervisor.query_failed("a", "x", now_ms=1, **how) == [
        Report("a", "failed", "x"),
        Stop("b"),
    ]


def test_unavailable_source_does_not_use_up_retries() -> None:
    supervisor = two(retries=1)
    supervisor.tick(0)
    now_ms, pauses = 0, []
    for _ in range(9):
        (report,) = supervisor.query_failed(
            "a", "down", permanent=False, now_ms=now_ms, patient=True
        )
        assert (
            isinstance(report, Report)
            and report.event == "retrying"
            and report.retry_in_ms is not None
        )
        pauses.append(report.retry_in_ms // SECOND)
        now_ms += report.retry_in_ms
        assert Start("a") in supervisor.tick(now_ms)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_stop_ends_waiting_and_paused_flows() -> None:
    supervisor = Supervisor.of(
        [FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))]
    )
    supervisor.tick(0)
    supervisor.query_failed("b", "x", permanent=False, now_ms=1)
    assert supervisor.stop() == [Stop("a"), Report("b", "stopped"), Report("c", "stopped")]
    assert supervisor.tick(10_000) == []
    assert supervisor.query_failed("a", "interrupted", permanent=False, now_ms=2) == [
        Report("a", "stopped", "interrupted")
    ]
    assert supervisor.ended and not supervisor.failed
    assert supervisor.flows["a"].state is State.STOPPED


def test_failed_independent_flow_does_not_stop_others() -> None:
    flows = [FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))]
    supervisor = Supervisor.of(flows, independent=True)
    supervisor.tick(0)
    assert supervisor.query_failed("a", "broken", permanent=True, now_ms=1) == [
        Report("a", "failed", "broken")
    ]
    # with the output that exists
    assert supervisor.tick(2) == [Start("c")]
    assert states(supervisor) == {"a": "failed", "b": "running", "c": "running"}


def test_single_flow_can_be_stopped() -> None:
    supervisor = two()
    supervisor.tick(0)
    assert supervisor.stop_flow("a") == [Stop("a")]
    assert supervisor.stop_flow("a") == []
    assert supervisor.finished("a", 5) == [Report("a", "stopped")]
    supervisor.query_failed("b", "x", permanent=False, now_ms=6)
    assert supervisor.stop_flow("b") == [Report("b", "stopped")]
    assert supervisor.stop_flow("b") == []
    assert supervisor.ended and not supervisor.stopping


def test_backoff_is_limited() -> None:
    assert [backoff_ms(n) for n in (1, 2, 3, 7, 100)] == [1000, 2000, 4000, 60_000, 60_000]


def test_jvm_fault_restarts_the_driver() -> None:
    supervisor = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=())
    supervisor.tick(0)
    assert supervisor.query_failed(
        "a", "Task not serializable", permanent=False, now_ms=10, fault=BROKEN_MAP
    ) == [
        Report("a", "retrying", BROKEN_MAP.text),
        Restart(BROKEN_MAP.text, 1, 1000),
        Report("a", "stopped"),
        Stop("b"),
    ]
    assert supervisor.tick(100_000) == []
    assert supervisor.query_failed("b", "same", permanent=False, now_ms=20, fault=BROKEN_MAP) == [
        Report("b", "stopped", "same")
    ]
    assert (
        supervisor.ended
        and not supervisor.failed
        and supervisor.restart == Restart(BROKEN_MAP.text, 1, 1000)
    )


def test_restarts_are_limited_with_growing_pauses() -> None:
    now_ms, made_restarts = 10_000_000, []
    for before in (
        (),
        (now_ms - 9,),
        (now_ms - 10, now_ms - 9),
        (now_ms - 11, now_ms - 10, now_ms - 9),
    ):
        supervisor = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=before)
        supervisor.tick(now_ms)
        instructions = supervisor.query_failed(
            "a", "x", permanent=False, now_ms=now_ms, fault=OUT_OF_MEMORY
        )
        made_restarts.append(supervisor.restart and supervisor.restart.in_ms)
    assert made_restarts == [1000, 10_000, 60_000, None]
    reason = f"{OUT_OF_MEMORY.text}; the JVM was restarted 3 times within the hour"
    assert instructions == [Report("a", "failed", reason), Stop("b")]


def test_restarts_older_than_an_hour_do_not_count() -> None:
    supervisor = Supervisor.of([FlowState("a")], restarts_ms=(1, 2, 3))
    supervisor.tick(3_600_003)
    supervisor.query_failed("a", "x", permanent=False, now_ms=3_600_003, fault=DEAD_JVM)
    assert supervisor.restart == Restart(DEAD_JVM.text, 1, 1000)


def test_third_lost_worker_in_a_row_restarts_the_jvm() -> None:
    supervisor = Supervisor.of([FlowState("a")], restarts_ms=())
    for number, fault in enumerate((LOST_WORKER, LOST_WORKER, None, LOST_WORKER, LOST_WORKER)):
        supervisor.tick(number * 100 * SECOND)
        supervisor.flows["a"].since_ms = number * 100 * SECOND
        supervisor.query_failed(
            "a", "x", permanent=False, now_ms=number * 100 * SECOND, fault=fault
        )
        assert supervisor.restart is None
    supervisor.tick(500 * SECOND)
    supervisor.query_failed("a", "x", permanent=False, now_ms=500 * SECOND, fault=LOST_WORKER)
    assert supervisor.restart is not None


def test_session_of_the_caller_is_not_restarted() -> None:
    supervisor = two()
    supervisor.tick(0)
    assert supervisor.query_failed("a", "x", permanent=False, now_ms=1, fault=BROKEN_MAP) == [
        Report("a", "failed", f"{BROKEN_MAP.text}; {OWN_SESSION}"),
        Stop("b"),
    ]
    supervisor = two()
    supervisor.tick(0)
    assert supervisor.query_failed("a", "x", permanent=False, now_ms=1, fault=OUT_OF_MEMORY) == [
        Report("a", "retrying", "x", 1000)
    ]


@pytest.mark.parametrize("policy", [{"on_failure": "stop"}, {"permanent": True}])
def test_policy_stop_and_permanent_errors_do_not_restart(policy: dict[str, object]) -> None:
    permanent = bool(policy.pop("permanent", False))
    supervisor = Supervisor.of([FlowState("a", **policy)], restarts_ms=())  # type: ignore[arg-type]
    supervisor.tick(0)
    assert supervisor.query_failed("a", "x", permanent=permanent, now_ms=1, fault=DEAD_JVM) == [
        Report("a", "failed", "x")
    ]
    assert supervisor.restart is None

"""When flows start, are tried again, give up and stop; and the figures of the live table. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.pipelines.run.jvm_failures import BROKEN_MAP, DEAD_JVM, LOST_WORKER, OUT_OF_MEMORY
from millstream.pipelines.run.locks import Held, Lock, is_locked
from millstream.pipelines.run.progress import Figures, FlowProgress, cells
from millstream.pipelines.run.supervisor import (
    LONGEST_HOLD_MS,
    OWN_SESSION,
    FlowState,
    Restart,
    Say,
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
    assert made.finished("a", 5) == [Say("a", "done")]
    assert made.tick(6) == [Start("b")]
    assert made.finished("b", 9) == [Say("b", "done")]
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
    assert made.tick(LONGEST_HOLD_MS) == []
    assert made.tick(LONGEST_HOLD_MS + 1) == [Start("b")]


@pytest.mark.parametrize("permanent", [True, False])
def test_failure_of_the_followed_flow_holds_nothing(permanent: bool) -> None:
    made = following()
    made.independent = True
    made.tick(0)
    made.failed_now("a", "broken", permanent=permanent, now_ms=10)
    assert made.tick(11) == [Start("b")]


def test_flow_follows_flows_that_are_not_part_of_the_run() -> None:
    made = Supervisor.of([FlowState("b", follows=frozenset({"a"}))])
    assert made.tick(0) == [Start("b")]


def test_a_failing_flow_is_tried_again_after_a_growing_pause() -> None:
    made = two()
    made.tick(0)
    assert made.failed_now("a", "broken", permanent=False, now_ms=10) == [
        Say("a", "retrying", "broken", 1000)
    ]
    assert made.tick(1009) == []
    assert made.tick(1010) == [Start("a")]
    assert made.failed_now("a", "broken", permanent=False, now_ms=1020) == [
        Say("a", "retrying", "broken", 2000)
    ]
    assert states(made) == {"a": "retrying", "b": "running"}


def test_tries_are_counted_from_the_last_good_minute() -> None:
    made = two(retries=1)
    made.tick(0)
    made.failed_now("a", "x", permanent=False, now_ms=10)
    made.tick(1010)
    assert made.failed_now("a", "x", permanent=False, now_ms=1010 + 60 * SECOND) == [
        Say("a", "retrying", "x", 1000)
    ]


def test_flow_that_runs_well_for_a_minute_forgets_its_failures() -> None:
    made = two()
    made.tick(0)
    made.failed_now("a", "x", permanent=False, now_ms=10)
    made.tick(1010)
    made.tick(1010 + 59 * SECOND)
    assert (made.flows["a"].failures, made.flows["a"].reason) == (1, "x")
    made.tick(1010 + 60 * SECOND)
    assert (made.flows["a"].failures, made.flows["a"].reason) == (0, "")


def test_a_flow_that_fails_too_often_stops_the_rest() -> None:
    made = two(retries=1)
    made.tick(0)
    made.failed_now("a", "x", permanent=False, now_ms=0)
    made.tick(1000)
    assert made.failed_now("a", "x", permanent=False, now_ms=1001) == [Say("a", "failed", "x"), Stop("b")]
    assert made.finished("b", 1002) == [Say("b", "stopped")]
    assert made.ended and [flow.name for flow in made.failed] == ["a"]


@pytest.mark.parametrize("how", [{"permanent": True}, {"permanent": False}])
def test_what_another_try_cannot_mend_and_the_policy_stop_end_at_once(how: dict[str, bool]) -> None:
    made = two(on_failure="retry" if how["permanent"] else "stop")
    made.tick(0)
    assert made.failed_now("a", "x", now_ms=1, **how) == [Say("a", "failed", "x"), Stop("b")]


def test_what_is_down_is_waited_for_without_using_up_tries() -> None:
    made = two(retries=1)
    made.tick(0)
    now_ms, pauses = 0, []
    for _ in range(9):
        (said,) = made.failed_now("a", "down", permanent=False, now_ms=now_ms, patient=True)
        assert isinstance(said, Say) and said.event == "retrying" and said.retry_in_ms is not None
        pauses.append(said.retry_in_ms // SECOND)
        now_ms += said.retry_in_ms
        assert Start("a") in made.tick(now_ms)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_stopping_ends_waiting_and_pausing_flows_and_starts_nothing() -> None:
    made = Supervisor.of([FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))])
    made.tick(0)
    made.failed_now("b", "x", permanent=False, now_ms=1)
    assert made.stop() == [Stop("a"), Say("b", "stopped"), Say("c", "stopped")]
    assert made.tick(10_000) == []
    assert made.failed_now("a", "interrupted", permanent=False, now_ms=2) == [
        Say("a", "stopped", "interrupted")
    ]
    assert made.ended and not made.failed
    assert made.flows["a"].state is State.STOPPED


def test_independent_flows_leave_each_other_alone() -> None:
    flows = [FlowState("a"), FlowState("b"), FlowState("c", needs=frozenset({"a"}))]
    made = Supervisor.of(flows, independent=True)
    made.tick(0)
    assert made.failed_now("a", "broken", permanent=True, now_ms=1) == [Say("a", "failed", "broken")]
    assert made.tick(2) == [Start("c")]  # with what there is
    assert states(made) == {"a": "failed", "b": "running", "c": "running"}


def test_one_flow_can_be_stopped() -> None:
    made = two()
    made.tick(0)
    assert made.stop_flow("a") == [Stop("a")]
    assert made.stop_flow("a") == []
    assert made.finished("a", 5) == [Say("a", "stopped")]
    made.failed_now("b", "x", permanent=False, now_ms=6)
    assert made.stop_flow("b") == [Say("b", "stopped")]
    assert made.stop_flow("b") == []
    assert made.ended and not made.stopping


def test_pauses_have_an_end() -> None:
    assert [backoff_ms(n) for n in (1, 2, 3, 7, 100)] == [1000, 2000, 4000, 60_000, 60_000]


def batch(number: int, rows: int, **more: object) -> dict[str, object]:
    return {
        "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
        "batchId": number,
        "numInputRows": rows,
        "durationMs": {"addBatch": 700, "triggerExecution": 900},
        **more,
    }


def test_figures_are_gathered_from_the_reports_of_batches() -> None:
    flow = FlowProgress("paid-orders")
    flow.begin(0)
    flow.wrote(2000)
    assert flow.report(
        batch(
            1,
            4000,
            stateOperators=[
                {"memoryUsedBytes": 61_000_000, "numRowsTotal": 7, "numRowsDroppedByWatermark": 2}
            ],
            sources=[{"endOffset": '{"t": {"0": 5, "1": 7}}', "latestOffset": {"t": {"0": 4105, "1": 7}}}],
            eventTime={"watermark": "2026-01-01T00:00:00.000Z"},
        ),
        2000,
    )
    assert not flow.report(batch(1, 4000), 2100)
    figures = flow.figures("running", 2100)
    assert figures == Figures(
        flow="paid-orders",
        state="running",
        batch=1,
        input_rows_per_s=2000.0,
        output_rows_per_s=1000.0,
        batch_ms=900,
        lag=4100,
        state_bytes=61_000_000,
        state_rows=7,
        watermark_ms=1_767_225_600_000,
        input_rows=4000,
        output_rows=2000,
        late_rows=2,
    )
    assert cells(figures, 1_767_225_662_000) == (
        "paid-orders",
        "2,000",
        "1,000",
        "0.9 s",
        "4.1k",
        "61 MB",
        "-1 m 02 s",
    )


def test_rates_fall_to_zero_when_nothing_comes() -> None:
    flow = FlowProgress("a")
    flow.begin(0)
    for number in range(1, 4):
        flow.report(batch(number, 100), number * 1000)
    assert flow.figures("running", 3000).input_rows_per_s == 100.0
    assert flow.figures("running", 6000).input_rows_per_s == 50.0
    assert flow.figures("running", 60_000).input_rows_per_s == 0.0


def test_a_flow_that_has_said_nothing_yet_shows_dashes() -> None:
    assert cells(FlowProgress("a").figures("starting", 0), 0) == ("a", "-", "-", "-", "-", "-", "-")


def test_a_lock_is_held_once_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not is_locked(path)
    first, second = Lock(path), Lock(path)
    first.acquire()
    assert is_locked(path)
    with pytest.raises(Held) as told:
        second.acquire()
    assert told.value.who.startswith("process ")
    first.release()
    assert not is_locked(path)
    second.acquire()
    second.release()


def test_fault_of_the_jvm_restarts_the_driver_instead_of_the_query() -> None:
    made = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=())
    made.tick(0)
    assert made.failed_now("a", "Task not serializable", permanent=False, now_ms=10, fault=BROKEN_MAP) == [
        Say("a", "retrying", BROKEN_MAP.what),
        Restart(BROKEN_MAP.what, 1, 1000),
        Say("a", "stopped"),
        Stop("b"),
    ]
    assert made.tick(100_000) == []
    assert made.failed_now("b", "same", permanent=False, now_ms=20, fault=BROKEN_MAP) == [
        Say("b", "stopped", "same")
    ]
    assert made.ended and not made.failed and made.restart == Restart(BROKEN_MAP.what, 1, 1000)


def test_restarts_are_limited_and_their_pauses_grow() -> None:
    now_ms, made_restarts = 10_000_000, []
    for before in ((), (now_ms - 9,), (now_ms - 10, now_ms - 9), (now_ms - 11, now_ms - 10, now_ms - 9)):
        made = Supervisor.of([FlowState("a"), FlowState("b")], restarts_ms=before)
        made.tick(now_ms)
        said = made.failed_now("a", "x", permanent=False, now_ms=now_ms, fault=OUT_OF_MEMORY)
        made_restarts.append(made.restart and made.restart.in_ms)
    assert made_restarts == [1000, 10_000, 60_000, None]
    reason = f"{OUT_OF_MEMORY.what}; the JVM was restarted 3 times within the hour"
    assert said == [Say("a", "failed", reason), Stop("b")]


def test_restarts_of_an_hour_ago_do_not_count() -> None:
    made = Supervisor.of([FlowState("a")], restarts_ms=(1, 2, 3))
    made.tick(3_600_003)
    made.failed_now("a", "x", permanent=False, now_ms=3_600_003, fault=DEAD_JVM)
    assert made.restart == Restart(DEAD_JVM.what, 1, 1000)


def test_jvm_is_blamed_for_the_third_lost_worker_in_a_row() -> None:
    made = Supervisor.of([FlowState("a")], restarts_ms=())
    for number, fault in enumerate((LOST_WORKER, LOST_WORKER, None, LOST_WORKER, LOST_WORKER)):
        made.tick(number * 100 * SECOND)
        made.flows["a"].since_ms = number * 100 * SECOND
        made.failed_now("a", "x", permanent=False, now_ms=number * 100 * SECOND, fault=fault)
        assert made.restart is None
    made.tick(500 * SECOND)
    made.failed_now("a", "x", permanent=False, now_ms=500 * SECOND, fault=LOST_WORKER)
    assert made.restart is not None


def test_session_of_the_program_is_not_replaced() -> None:
    made = two()
    made.tick(0)
    assert made.failed_now("a", "x", permanent=False, now_ms=1, fault=BROKEN_MAP) == [
        Say("a", "failed", f"{BROKEN_MAP.what}; {OWN_SESSION}"),
        Stop("b"),
    ]
    made = two()
    made.tick(0)
    assert made.failed_now("a", "x", permanent=False, now_ms=1, fault=OUT_OF_MEMORY) == [
        Say("a", "retrying", "x", 1000)
    ]


@pytest.mark.parametrize("policy", [{"on_failure": "stop"}, {"permanent": True}])
def test_policy_stop_and_permanent_errors_do_not_restart(policy: dict[str, object]) -> None:
    permanent = bool(policy.pop("permanent", False))
    made = Supervisor.of([FlowState("a", **policy)], restarts_ms=())  # type: ignore[arg-type]
    made.tick(0)
    assert made.failed_now("a", "x", permanent=permanent, now_ms=1, fault=DEAD_JVM) == [
        Say("a", "failed", "x")
    ]
    assert made.restart is None

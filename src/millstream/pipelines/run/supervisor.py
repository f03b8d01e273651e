"""Decides when a flow starts, is retried, gives up or is stopped. Pure: no I/O, no clock.

A flow is WAITING until its inputs are complete (only with --once) or the flows that it follows have
had a batch. Then it is RUNNING, or PAUSED between two tries. It ends as DONE (it has read
everything), FAILED or STOPPED. A flow that fails permanently stops the others, because half a
pipeline that looks alive is worse than one that ends with an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from millstream.pipelines.run.jvm_failures import JvmFault

FIRST_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 60_000
HEALTHY_AFTER_MS = 60_000
"""A flow that ran this long without a failure has all its retries again."""
RESTART_BACKOFF_MS = (1_000, 10_000, 60_000)
"""The pauses before the first, second and third restart of the driver's JVM. There is no fourth."""
RESTART_WINDOW_MS = 3_600_000
"""Restarts that are older than this do not count."""
MAX_HOLD_MS = 20_000
"""The maximum time that a new flow waits for the first batch of a flow that it follows."""
OWN_SESSION = "the program that runs the pipeline created the session, so its JVM is not replaced: restart the program"


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "retrying"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


ENDED = frozenset({State.DONE, State.FAILED, State.STOPPED})


class Start(NamedTuple):
    """Start the query of a flow."""

    flow: str


class Stop(NamedTuple):
    """Let a flow finish its batch, then stop it."""

    flow: str


class Report(NamedTuple):
    """Report the state of a flow to the user."""

    flow: str
    event: str
    reason: str = ""
    retry_in_ms: int | None = None


class Restart(NamedTuple):
    """Stop every flow, then continue in a new JVM after a pause."""

    reason: str
    number: int
    in_ms: int


Instruction = Start | Stop | Report | Restart


@dataclass
class FlowState:
    """The policy and the state of one flow."""

    name: str
    needs: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    """Flows whose first batch comes first.

    Before it this flow has no input, and would only take CPU time.
    """
    held_since_ms: int | None = None
    had_batch: bool = False
    on_failure: str = "retry"
    retries: int = 5
    state: State = State.WAITING
    failures: int = 0
    since_ms: int = 0
    next_try_ms: int = 0
    reason: str = ""
    faults: int = 0
    """Consecutive failures that the JVM may have caused."""


@dataclass
class Supervisor:
    """All flows of a run. The caller carries out the instructions in order."""

    flows: dict[str, FlowState] = field(default_factory=dict)
    stopping: bool = False
    independent: bool = False
    """A flow that fails permanently does not stop the others."""
    restarts_ms: tuple[int, ...] | None = None
    """Times of earlier restarts of the driver's JVM; None if it cannot be restarted."""
    restart: Restart | None = None
    """The restart that this run ends with."""

    @classmethod
    def of(
        cls,
        flows: Iterable[FlowState],
        *,
        independent: bool = False,
        restarts_ms: tuple[int, ...] | None = None,
    ) -> Supervisor:
        return cls(
            {flow.name: flow for flow in flows}, independent=independent, restarts_ms=restarts_ms
        )

    @property
    def ended(self) -> bool:
        return all(flow.state in ENDED for flow in self.flows.values())

    @property
    def failed(self) -> list[FlowState]:
        return [flow for flow in self.flows.values() if flow.state is State.FAILED]

    def tick(self, now_ms: int) -> list[Instruction]:
        """Start the flows whose inputs are complete, or whose pause is over.

        Failures are reset for flows that run well again.
        """
        out: list[Instruction] = []
        for flow in self.flows.values():
            if (
                flow.failures
                and flow.state is State.RUNNING
                and now_ms - flow.since_ms >= HEALTHY_AFTER_MS
            ):
                flow.failures, flow.reason = 0, ""
        if self.stopping:
            return out
        for flow in self.flows.values():
            ready = (
                flow.state is State.WAITING
                and all(
                    self._is_over(self.flows[name]) for name in flow.needs if name in self.flows
                )
                and not self._is_held(flow, now_ms)
            )
            if ready or (flow.state is State.PAUSED and now_ms >= flow.next_try_ms):
                flow.state, flow.since_ms = State.RUNNING, now_ms
                out.append(Start(flow.name))
        return out

    def _is_held(self, flow: FlowState, now_ms: int) -> bool:
        """Return whether a flow should leave the CPU to a followed flow's first batch."""
        if flow.held_since_ms is None:
            flow.held_since_ms = now_ms
        if now_ms - flow.held_since_ms >= MAX_HOLD_MS:
            return False
        followed = [self.flows[name] for name in flow.follows if name in self.flows]
        return any(
            other.state is State.WAITING or (other.state is State.RUNNING and not other.had_batch)
            for other in followed
        )

    def _is_over(self, flow: FlowState) -> bool:
        return flow.state in ENDED if self.independent else flow.state is State.DONE

    def batch_done(self, name: str) -> None:
        """Record that a flow has written a batch."""
        self.flows[name].had_batch = True

    def finished(self, name: str, now_ms: int) -> list[Instruction]:
        """Handle the end of a query without an error: it has read everything, or was stopped."""
        flow = self.flows[name]
        flow.state = State.STOPPED if flow.state is State.STOPPING else State.DONE
        return [Report(name, str(flow.state))]

    def query_failed(
        self,
        name: str,
        reason: str,
        *,
        permanent: bool,
        now_ms: int,
        patient: bool = False,
        fault: JvmFault | None = None,
    ) -> list[Instruction]:
        """Handle the end of a query with an error.

        ``permanent``: a retry would fail the same way. ``patient``: the flow waits for something
        that is down, which does not use up its retries. ``fault``: the JVM may have caused the
        error.
        """
        flow = self.flows[name]
        if flow.state is State.STOPPING:
            flow.state = State.STOPPED
            return [Report(name, "stopped", reason)]
        if now_ms - flow.since_ms >= HEALTHY_AFTER_MS:
            flow.failures = flow.faults = 0
        flow.failures += 1
        flow.faults = flow.faults + 1 if fault else 0
        flow.reason = reason
        if fault and flow.faults >= fault.after and not permanent:
            if self.restarts_ms is not None and flow.on_failure != "stop" and not self.stopping:
                return self._restart(flow, fault, now_ms)
            if self.restarts_ms is None and fault.fatal:
                flow.reason = reason = f"{fault.text}; {OWN_SESSION}"
                permanent = True
        given_up = flow.failures > flow.retries and not patient
        if permanent or flow.on_failure == "stop" or given_up or self.stopping:
            flow.state = State.FAILED
            return [Report(name, "failed", reason), *([] if self.independent else self.stop())]
        pause_ms = backoff_ms(flow.failures)
        flow.state, flow.next_try_ms = State.PAUSED, now_ms + pause_ms
        return [Report(name, "retrying", reason, pause_ms)]

    def _restart(self, flow: FlowState, fault: JvmFault, now_ms: int) -> list[Instruction]:
        """Request a new JVM, unless it was restarted too often already."""
        assert self.restarts_ms is not None
        number = sum(now_ms - restart_ms < RESTART_WINDOW_MS for restart_ms in self.restarts_ms)
        if number >= len(RESTART_BACKOFF_MS):
            flow.state = State.FAILED
            flow.reason = f"{fault.text}; the JVM was restarted {number} times within the hour"
            return [
                Report(flow.name, "failed", flow.reason),
                *([] if self.independent else self.stop()),
            ]
        flow.reason = fault.text
        flow.state = State.PAUSED
        self.restart = Restart(fault.text, number + 1, RESTART_BACKOFF_MS[number])
        return [Report(flow.name, "retrying", fault.text), self.restart, *self.stop()]

    def stop(self) -> list[Instruction]:
        """Stop every flow that has not ended."""
        self.stopping = True
        return [instruction for name in self.flows for instruction in self.stop_flow(name)]

    def stop_flow(self, name: str) -> list[Instruction]:
        """Stop one flow, unless it has ended."""
        flow = self.flows[name]
        if flow.state is State.RUNNING:
            flow.state = State.STOPPING
            return [Stop(name)]
        if flow.state not in ENDED and flow.state is not State.STOPPING:
            flow.state = State.STOPPED
            return [Report(name, "stopped")]
        return []


def backoff_ms(failures: int) -> int:
    """Return the pause after a number of consecutive failures: 1 s, 2 s, 4 s, up to a minute."""
    return min(FIRST_BACKOFF_MS << min(failures - 1, 16), MAX_BACKOFF_MS)


def states(supervisor: Supervisor) -> Mapping[str, str]:
    return {name: str(flow.state) for name, flow in supervisor.flows.items()}

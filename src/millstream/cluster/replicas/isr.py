"""Sends the ISR proposals of leaders to the controller, and applies its decisions.

Only one request is in flight; proposals in the meantime go with the next one. A proposal whose
outcome is unknown stays in flight, and is sent again. Until it is decided, the high watermark waits
for the members of both ISRs. If the first attempt was successful, the controller rejects the second
as outdated, and the feed delivers the new state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.replicas.partition import Partition
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.replication.leader import IsrProposal

log = logging.getLogger("millstream.isr")

Outcomes = Mapping[tuple[bytes, int], PartitionState | ErrorCode]
Ask = Callable[[Sequence[IsrRequest]], Awaitable[Outcomes]]
_RETRY_S = 0.2
# Errors that do not decide the proposal: retry.
_RETRIABLE = {ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.REQUEST_TIMED_OUT}
# Errors that mean that a current proposal was rejected. After any other error the leader is behind,
# maybe behind the proposal itself.
_REJECTED = {
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}


class IsrManager:
    """Proposes ISR changes. ``ask`` sends them to the controller, in this process or another."""

    def __init__(
        self,
        ask: Ask,
        *,
        led: Callable[[], Iterable[Partition]],
        max_lag_ms: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._led = led
        self._max_lag_ms = max_lag_ms
        self._proposed: dict[TopicPartition, tuple[Partition, IsrProposal]] = {}
        self._new_proposals = asyncio.Event()

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        log.info("%s: proposing the ISR %s", partition.tp, sorted(proposal.members))
        self._proposed[partition.tp] = partition, proposal
        self._new_proposals.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_proposals())
            group.create_task(self._watch_lag())

    async def _watch_lag(self) -> None:
        """Propose to remove followers that have fallen behind.

        They leave the ISR within one and a half times the allowed lag. Followers that were about to
        join and stopped fetching no longer delay the high watermark: without another fetch or
        append, no event would show that.
        """
        while True:
            max_lag_ms = self._max_lag_ms()
            await asyncio.sleep(max_lag_ms / 2000)
            for partition in list(self._led()):
                followers, partition_log = partition.followers, partition.log
                if followers is not None and partition_log is not None:
                    proposal = followers.propose_shrinking(
                        partition_log.log_end_offset,
                        max_lag_ms=max_lag_ms,
                        now_ms=partition.steady_ms(),
                    )
                    if proposal is not None:
                        self.propose(partition, proposal)
                    elif partition_log.high_watermark < partition_log.log_end_offset:
                        partition.advance_with_followers()

    async def _send_proposals(self) -> None:
        while True:
            await self._new_proposals.wait()
            self._new_proposals.clear()
            batch, self._proposed = self._proposed, {}
            batch = {tp: row for tp, row in batch.items() if _in_flight(*row)}
            if not batch:
                continue
            try:
                outcomes = await self._ask([_request(*row) for row in batch.values()])
            except (ApiError, OSError) as error:
                log.info("cannot propose ISR changes yet: %s", error)
                self._retry(batch)
                await asyncio.sleep(_RETRY_S)
                continue
            undecided = {
                tp: row
                for tp, row in batch.items()
                if not self._apply(*row, outcomes.get((row[0].topic_id, tp.partition)))
            }
            if undecided:  # later, without delaying other proposals
                asyncio.get_running_loop().call_later(_RETRY_S, self._retry, undecided)

    def _retry(self, batch: Mapping[TopicPartition, tuple[Partition, IsrProposal]]) -> None:
        self._proposed = {**batch, **self._proposed}
        self._new_proposals.set()

    def _apply(
        self,
        partition: Partition,
        proposal: IsrProposal,
        outcome: PartitionState | ErrorCode | None,
    ) -> bool:
        """Apply the outcome of a proposal; return False if it must be sent again."""
        followers = partition.followers
        if followers is None or followers.proposal is not proposal:
            return True  # the feed was faster, or another epoch has begun
        if isinstance(outcome, PartitionState):
            if outcome.leader_epoch != proposal.leader_epoch:
                return True  # it came with a new epoch, which the feed delivers
            if followers.on_isr(outcome.isr, outcome.partition_epoch):
                partition.isr, partition.partition_epoch = outcome.isr, outcome.partition_epoch
                partition.advance_with_followers()
        elif outcome is None or outcome in _RETRIABLE:
            return False
        else:
            log.info(
                "%s: the ISR %s was rejected: %s",
                partition.tp,
                sorted(proposal.members),
                outcome.name,
            )
            if outcome in _REJECTED:
                followers.on_rejected()
                partition.advance_with_followers()
        return True


def _in_flight(partition: Partition, proposal: IsrProposal) -> bool:
    return partition.followers is not None and partition.followers.proposal is proposal


def _request(partition: Partition, proposal: IsrProposal) -> IsrRequest:
    return IsrRequest(
        partition.topic_id,
        partition.tp.partition,
        proposal.leader_epoch,
        proposal.partition_epoch,
        tuple((member.node_id, member.broker_epoch) for member in proposal.isr),
    )

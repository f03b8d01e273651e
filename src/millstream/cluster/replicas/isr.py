"""Brings a leader's ISR proposals to the controller, many in one request, and its word back to the partitions.

One request at a time: what is proposed meanwhile goes with the next. A proposal whose outcome is unknown stays in flight, so that the high watermark goes on waiting for
all who may be in the ISR, and is sent again: the controller says that it is no longer current, also where it was carried out, and the feed tells what is. Until then it stays in flight.
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
# Not an answer to the proposal itself: ask again.
_ASK_AGAIN = {ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.REQUEST_TIMED_OUT}
# The proposal was current, and has not become the ISR. Whoever is told anything else is behind: the proposal may be what it is behind of.
_REFUSED = {
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}


class IsrManager:
    """``ask`` sends proposals to the controller, wherever it is."""

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
        self._news = asyncio.Event()

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        log.info("%s: proposing the ISR %s", partition.tp, sorted(proposal.members))
        self._proposed[partition.tp] = partition, proposal
        self._news.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_proposals())
            group.create_task(self._watch_lag())

    async def _watch_lag(self) -> None:
        """Followers that have fallen behind leave the ISR within one and a half times the allowed lag. Those that were about to join and
        have gone silent hold the high watermark up no longer: no fetch and no append of such a partition may ever tell."""
        while True:
            max_lag_ms = self._max_lag_ms()
            await asyncio.sleep(max_lag_ms / 2000)
            for partition in list(self._led()):
                followers, log_ = partition.followers, partition.log
                if followers is not None and log_ is not None:
                    proposal = followers.propose_shrinking(
                        log_.log_end_offset, max_lag_ms=max_lag_ms, now_ms=partition.steady_ms()
                    )
                    if proposal is not None:
                        self.propose(partition, proposal)
                    elif log_.high_watermark < log_.log_end_offset:
                        partition.advance_with_followers()

    async def _send_proposals(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._proposed = self._proposed, {}
            batch = {tp: row for tp, row in batch.items() if _in_flight(*row)}
            if not batch:
                continue
            try:
                outcomes = await self._ask([_request(*row) for row in batch.values()])
            except (ApiError, OSError) as error:
                log.info("the ISR cannot be proposed now: %s", error)
                self._again(batch)
                await asyncio.sleep(_RETRY_S)
                continue
            unanswered = {
                tp: row
                for tp, row in batch.items()
                if not self._take_in(*row, outcomes.get((row[0].topic_id, tp.partition)))
            }
            if unanswered:  # later, and nobody else waits for them
                asyncio.get_running_loop().call_later(_RETRY_S, self._again, unanswered)

    def _again(self, batch: Mapping[TopicPartition, tuple[Partition, IsrProposal]]) -> None:
        self._proposed = {**batch, **self._proposed}
        self._news.set()

    def _take_in(
        self, partition: Partition, proposal: IsrProposal, outcome: PartitionState | ErrorCode | None
    ) -> bool:
        """False where it has to be sent again."""
        followers = partition.followers
        if followers is None or followers.proposal is not proposal:
            return True  # the feed was quicker, or another epoch has begun
        if isinstance(outcome, PartitionState):
            if outcome.leader_epoch != proposal.leader_epoch:
                return True  # a new epoch with it, of which the feed tells
            if followers.on_isr(outcome.isr, outcome.partition_epoch):
                partition.isr, partition.partition_epoch = outcome.isr, outcome.partition_epoch
                partition.advance_with_followers()
        elif outcome is None or outcome in _ASK_AGAIN:
            return False
        else:
            log.info("%s: the ISR %s was refused: %s", partition.tp, sorted(proposal.members), outcome.name)
            if outcome in _REFUSED:
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

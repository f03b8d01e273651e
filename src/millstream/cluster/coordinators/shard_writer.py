"""Writes the records of a decision: to the shard and to its log."""

from __future__ import annotations

from millstream.cluster.coordinators.replay import Codec, DurableState
from millstream.cluster.replicas.partition import Partition
from millstream.core.decisions import APPEND_ERRORS, Decision
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.producers.state import Origin, Verification
from millstream.ports.clock import Clock
from millstream.wire.records.batch import Record, build_batch


class AppendFailed(Exception):
    """The log rejected records that the shard has applied already: the shard must be reloaded."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class ShardWriter:
    """Encodes, applies and appends the records of one internal topic."""

    def __init__(self, name: str, clock: Clock, codec: Codec) -> None:
        self._name = name
        self._clock = clock
        self._codec = codec

    def write(
        self,
        partition: Partition,
        shard: DurableState,
        decision: Decision,
        guard: Verification | None,
    ) -> int:
        """Write the records of a decision; return the offset of the last one.

        Raise ApiError if nothing has happened, AppendFailed if the shard must be reloaded.
        """
        batch = self._encode(partition, decision)
        transaction = decision.transactional
        if transaction is None:
            # Too few replicas are no reason to reload the shard.
            try:
                partition.check_min_isr()
            except ApiError as error:
                raise coordinator_error(error) from None
            # Applied first: a record that cannot be applied never reaches the log.
            for record in decision.records:
                shard.apply(record)
            try:
                return self._append(partition, batch, None)
            except ApiError as error:
                raise AppendFailed(error) from None
        # Appended first: the log rejects a fenced producer, and that must not cost the shard.
        try:
            last_offset = self._append(partition, batch, guard)
        except ApiError as error:
            raise coordinator_error(error) from None
        for record in decision.records:
            shard.apply_transactional(record, transaction.producer_id)
        return last_offset

    def _encode(self, partition: Partition, decision: Decision) -> memoryview:
        """Return the records as one batch; raise ApiError if it is too large."""
        now_ms = self._clock.now_ms()
        rows: list[Record] = []
        for record in decision.records:
            key, value = self._codec.encode(record)
            rows.append(Record(len(rows), now_ms, key, value, ()))
        transaction = decision.transactional
        batch = build_batch(
            rows,
            max_timestamp=now_ms,
            producer_id=transaction.producer_id if transaction is not None else -1,
            producer_epoch=transaction.producer_epoch if transaction is not None else -1,
            transactional=transaction is not None,
        )
        max_bytes = partition.online_log.config.max_message_bytes
        if len(batch) > max_bytes:
            raise ApiError(
                APPEND_ERRORS[ErrorCode.RECORD_LIST_TOO_LARGE],
                f"a batch of {len(batch)} bytes exceeds max.message.bytes of {self._name} ({max_bytes})",
            )
        return memoryview(bytearray(batch))

    def _append(self, partition: Partition, batch: memoryview, guard: Verification | None) -> int:
        result = partition.append(
            batch,
            now_ms=self._clock.now_ms(),
            needs_all=True,
            origin=Origin.COORDINATOR,
            guard=guard,
        )
        return result.last_offset


def coordinator_error(error: ApiError) -> ApiError:
    """Return the error of a failed append as clients expect it from a coordinator."""
    return ApiError(APPEND_ERRORS.get(error.code, error.code), error.message)

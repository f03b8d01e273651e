"""The driver's side of transactions: who owns a transactional id opens it once and ends its transactions.

Only under ``transaction.version`` 2 (KIP-890): there every end moves the epoch on, so whatever a task of an earlier batch still sends is
refused everywhere, and partitions join a transaction with their first batch. Older brokers are refused: with them a task that was
given up could write into the next transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.client.errors import BrokerUnreachable, ClientError, refusal
from millstream.client.protocol import TRANSACTION, Protocol
from millstream.client.retries import MOVING
from millstream.core.errors import ErrorCode
from millstream.spark.sink.failures import OutcomeUnknown, SinkError, SinkFenced
from millstream.spark.sink.writer import FENCED, NOBODY, Producer
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")

FEATURE, NEEDED_LEVEL = "transaction.version", 2
ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
FIRST_RETRY_S, LAST_RETRY_S = 0.002, 0.25


class TransactionOwner:
    """The only one that may open and end transactions of an id. ``producer`` is who writes the next one."""

    def __init__(
        self, protocol: Protocol, transactional_id: str, *, timeout_ms: int, patience_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer: Producer = NOBODY
        self._protocol = protocol
        self._patience_s = patience_s
        self._coordinator: int | None = None

    def fence(self) -> Producer:
        """End whatever an earlier owner left open, and shut it and its tasks out for good."""
        self._check_version()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        answer = self._until_answered(lambda: self._ask(request))
        if answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise SinkError(
                f"a transaction timeout of {self.timeout_ms} ms is more than the broker allows",
                hint="lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the brokers",
            )
        if answer.error_code:
            raise refusal(answer.error_code, doing=f"open the transactional id {self.transactional_id!r}")
        self.producer = Producer(answer.producer_id, answer.producer_epoch)
        return self.producer

    def end(self, *, commit: bool) -> None:
        """Commit or abort, and take on the epoch that follows (or the next producer id, when epochs have run out).

        A lost answer is asked for again under the same epoch: the coordinator knows it as a repetition. When it cannot be had in time
        the outcome is unknown, and nobody may guess it.
        """
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=commit,
        )
        word = "commit" if commit else "abort"
        try:
            answer = self._until_answered(lambda: self._ask(request))
        except ClientError as error:
            raise OutcomeUnknown(
                f"whether the {word} of {self.transactional_id!r} took effect is not known ({error})",
                hint="start the query again: it reads from the progress topic what was committed",
            ) from error
        code = ErrorCode.of(answer.error_code)
        if code in FENCED or code == ErrorCode.INVALID_TXN_STATE:
            raise SinkFenced(
                f"the {word} of {self.transactional_id!r} was refused: {code.name}, {code.message}"
            )
        if code != ErrorCode.NONE or answer.producer_id < 0:
            raise OutcomeUnknown(
                f"the {word} of {self.transactional_id!r} was answered with {code.name}",
                hint="start the query again: it reads from the progress topic what was committed",
            )
        self.producer = Producer(answer.producer_id, answer.producer_epoch)

    def was_aborted(self) -> bool:
        """Whether the last thing that happened under this id was an abort; False where nobody can tell."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        try:
            state = self._until_answered(
                lambda: self._ask(request, lambda answer: answer.transaction_states[0])
            )
        except ClientError:
            return False
        return state.transaction_state in ABORTED

    def _check_version(self) -> None:
        request = ApiVersionsRequest(client_software_name="millstream", client_software_version="spark")
        answer = self._until_answered(lambda: self._protocol.ask(request))
        level = {one.name: one.max_version_level for one in answer.finalized_features}.get(FEATURE, 0)
        if level < NEEDED_LEVEL:
            raise SinkError(
                f"the cluster runs {FEATURE}={level}, and exactly-once needs {NEEDED_LEVEL}",
                hint="raise it (Apache Kafka 4.0 and later: kafka-features.sh upgrade --feature transaction.version=2), "
                'or use delivery="at-least-once"',
            )

    def _ask(self, request: Any, part: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """The coordinator's answer, or the part of it that has the error; forgets the coordinator when it is no longer one."""
        if self._coordinator is None:
            self._coordinator = self._protocol.coordinator(self.transactional_id, TRANSACTION).node
        try:
            answer = part(self._protocol.ask(request, node=self._coordinator))
        except BrokerUnreachable:
            self._coordinator = None
            raise
        if answer.error_code in MOVING and answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            self._coordinator = None
        return answer

    def _until_answered(self, attempt: Callable[[], T]) -> T:
        return persist(attempt, self._patience_s)


def persist(attempt: Callable[[], T], patience_s: float) -> T:
    """Repeat while brokers are away, coordinators and leaders move, or an earlier transaction is being completed."""
    deadline_s = time.monotonic() + patience_s
    pause_s = FIRST_RETRY_S
    while True:
        try:
            answer = attempt()
            code = getattr(answer, "error_code", 0)
            if code not in MOVING:
                return answer
            error = refusal(code, doing="reach the coordinator")
        except ClientError as raised:
            if not isinstance(raised, BrokerUnreachable) and raised.code not in MOVING:
                raise
            error = raised
        if time.monotonic() > deadline_s:
            raise error
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LAST_RETRY_S)

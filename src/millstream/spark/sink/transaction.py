"""The driver's side of transactions: open a transactional id once, and end its transactions.

Requires ``transaction.version`` 2 (KIP-890). There every end of a transaction raises the epoch, so
brokers reject everything that a task of an earlier batch still sends. And partitions join a
transaction with their first batch. With older brokers an abandoned task could write into the next
transaction, so they are rejected.
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
from millstream.spark.sink.writer import FENCED, NO_PRODUCER, Producer
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")

FEATURE, NEEDED_LEVEL = "transaction.version", 2
ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
FIRST_RETRY_S, LAST_RETRY_S = 0.002, 0.25


class TransactionOwner:
    """Opens and ends the transactions of one id. ``producer`` writes the next one."""

    def __init__(
        self, protocol: Protocol, transactional_id: str, *, timeout_ms: int, patience_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer: Producer = NO_PRODUCER
        self._protocol = protocol
        self._patience_s = patience_s
        self._coordinator: int | None = None

    def fence(self) -> Producer:
        """Abort the open transaction of an earlier owner, and fence it and its tasks."""
        self._check_version()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        response = self._retry(lambda: self._ask(request))
        if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise SinkError(
                f"the broker does not allow a transaction timeout of {self.timeout_ms} ms",
                hint="lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the brokers",
            )
        if response.error_code:
            raise refusal(
                response.error_code, doing=f"open the transactional id {self.transactional_id!r}"
            )
        self.producer = Producer(response.producer_id, response.producer_epoch)
        return self.producer

    def end(self, *, commit: bool) -> None:
        """Commit or abort, and adopt the producer of the next transaction.

        It has the next epoch, or the next producer id if epochs have run out. A lost response is
        requested again under the same epoch; the coordinator recognises the repetition. Without a
        response in time the outcome is unknown, and the caller must not guess it.
        """
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=commit,
        )
        action = "commit" if commit else "abort"
        try:
            response = self._retry(lambda: self._ask(request))
        except ClientError as error:
            raise OutcomeUnknown(
                f"whether the {action} of {self.transactional_id!r} took effect is not known ({error})",
                hint="start the query again: it reads the committed progress",
            ) from error
        code = ErrorCode.of(response.error_code)
        if code in FENCED or code == ErrorCode.INVALID_TXN_STATE:
            raise SinkFenced(
                f"the {action} of {self.transactional_id!r} was rejected: {code.name}, {code.message}"
            )
        if code != ErrorCode.NONE or response.producer_id < 0:
            raise OutcomeUnknown(
                f"the {action} of {self.transactional_id!r} failed with {code.name}",
                hint="start the query again: it reads the committed progress",
            )
        self.producer = Producer(response.producer_id, response.producer_epoch)

    def was_aborted(self) -> bool:
        """Return whether the last transaction of this id was aborted; False if not known."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        try:
            state = self._retry(
                lambda: self._ask(request, lambda response: response.transaction_states[0])
            )
        except ClientError:
            return False
        return state.transaction_state in ABORTED

    def _check_version(self) -> None:
        request = ApiVersionsRequest(
            client_software_name="millstream", client_software_version="spark"
        )
        response = self._retry(lambda: self._protocol.ask(request))
        levels = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }
        level = levels.get(FEATURE, 0)
        if level < NEEDED_LEVEL:
            raise SinkError(
                f"the cluster runs {FEATURE}={level}, and exactly-once needs {NEEDED_LEVEL}",
                hint="raise it (Apache Kafka 4.0 and later: kafka-features.sh upgrade "
                '--feature transaction.version=2), or use delivery="at-least-once"',
            )

    def _ask(self, request: Any, part: Callable[[Any], Any] = lambda response: response) -> Any:
        """Return the coordinator's response, or the part of it that has the error code.

        Drop the coordinator if it is no longer responsible.
        """
        if self._coordinator is None:
            self._coordinator = self._protocol.coordinator(self.transactional_id, TRANSACTION).node
        try:
            response = part(self._protocol.ask(request, node=self._coordinator))
        except BrokerUnreachable:
            self._coordinator = None
            raise
        if (
            response.error_code in MOVING
            and response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS
        ):
            self._coordinator = None
        return response

    def _retry(self, attempt: Callable[[], T]) -> T:
        return retry(attempt, self._patience_s)


def retry(attempt: Callable[[], T], patience_s: float) -> T:
    """Retry while brokers are down, leaders and coordinators move, or a transaction completes."""
    deadline_s = time.monotonic() + patience_s
    pause_s = FIRST_RETRY_S
    while True:
        try:
            response = attempt()
            code = getattr(response, "error_code", 0)
            if code not in MOVING:
                return response
            error = refusal(code, doing="reach the coordinator")
        except ClientError as raised:
            if not isinstance(raised, BrokerUnreachable) and raised.code not in MOVING:
                raise
            error = raised
        if time.monotonic() > deadline_s:
            raise error
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LAST_RETRY_S)

"""DescribeTransactions and ListTransactions for a shard, and the merged list of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import groupby

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.regex import Automaton, compiled
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.states import BY_TITLE
from millstream.wire.messages import describe_transactions, list_transactions
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def described(
    transactional_id: str, metadata: TransactionMetadata | None
) -> describe_transactions.TransactionState:
    if not transactional_id:
        return error_state(transactional_id, ErrorCode.INVALID_REQUEST)
    if metadata is None:
        return error_state(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics = groupby(sorted(metadata.partitions), key=lambda tp: tp.topic)
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.title,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[
            describe_transactions.TopicData(topic=topic, partitions=[tp.partition for tp in row])
            for topic, row in topics
        ],
    )


def error_state(transactional_id: str, code: ErrorCode) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(
        error_code=code, transactional_id=transactional_id
    )


def listed(
    request: ListTransactionsRequest, transactions: Mapping[str, TransactionMetadata], now_ms: int
) -> ListTransactionsResponse:
    """Return the transactions that match every filter.

    Unknown state names of the request are returned in ``unknown_state_filters``.
    """
    try:
        matches = _filter(request, now_ms)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=_unknown_states(request),
        transaction_states=[
            list_transactions.TransactionState(
                transactional_id=name,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.title,
            )
            for name, metadata in transactions.items()
            if matches(name, metadata)
        ],
    )


def check(request: ListTransactionsRequest) -> None:
    """Raise ApiError if the pattern is not a valid regular expression."""
    _pattern(request.transactional_id_pattern)


def _unknown_states(request: ListTransactionsRequest) -> list[str]:
    return [title for title in dict.fromkeys(request.state_filters) if title not in BY_TITLE]


def _filter(
    request: ListTransactionsRequest, now_ms: int
) -> Callable[[str, TransactionMetadata], bool]:
    states = {BY_TITLE[title] for title in request.state_filters if title in BY_TITLE}
    producer_ids = frozenset(request.producer_id_filters)
    pattern = _pattern(request.transactional_id_pattern)
    longer_than_ms = request.duration_filter

    def matches(name: str, metadata: TransactionMetadata) -> bool:
        return (
            (not producer_ids or metadata.producer_id in producer_ids)
            and (not request.state_filters or metadata.state in states)
            and (longer_than_ms < 0 or now_ms - metadata.start_ms > longer_than_ms)
            and (pattern is None or pattern.matches(name))
        )

    return matches


@lru_cache(maxsize=4)
def _pattern(text: str | None) -> Automaton | None:
    """Compile a pattern. Cached, because every shard of a request compiles the same pattern."""
    return compiled(text) if text else None


def merged(responses: Iterable[ListTransactionsResponse]) -> ListTransactionsResponse:
    """Merge the responses of all shards of a broker. An error of one shard is the error of all."""
    combined = ListTransactionsResponse()
    for response in responses:
        if response.error_code:
            return response
        combined.unknown_state_filters = response.unknown_state_filters
        combined.transaction_states.extend(response.transaction_states)
    return combined

"""Bad input, request by request: the exact error code, and nothing else happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.settings import TransactionSettings
from support.transactions.samples import (
    A0,
    A1,
    CLASSIC_SETTINGS,
    EPOCH,
    LAST_EPOCH,
    NOW_MS,
    OFFSETS,
    PID,
    SETTINGS,
    TWO_PHASE_SETTINGS,
    S,
    add_offsets,
    end,
    error_of,
    init,
    join,
    metadata,
    shard,
)

EMPTY, ONGOING = metadata(S.EMPTY), metadata(S.ONGOING)
COMMITTING, ABORTING = metadata(S.PREPARE_COMMIT), metadata(S.PREPARE_ABORT)
COMMITTED, ABORTED = metadata(S.COMPLETE_COMMIT), metadata(S.COMPLETE_ABORT)
# Ended by a client of transaction.version 2, under the epoch before the present one.
COMMITTED_2 = metadata(S.COMPLETE_COMMIT, client_transaction_version=2)
ABORTED_2 = metadata(S.COMPLETE_ABORT, client_transaction_version=2)
NOBODY = None
MAX_MS = SETTINGS.transaction_max_timeout_ms
OLD, NEW = EPOCH - 1, EPOCH + 1

INIT: list[tuple[str, TransactionMetadata | None, int, dict[str, Any], E]] = [
    ("empty id", EMPTY, 4, {"transactional_id": ""}, E.INVALID_REQUEST),
    ("id without epoch", EMPTY, 4, {"producer_id": PID}, E.INVALID_REQUEST),
    ("epoch without id", EMPTY, 4, {"producer_epoch": EPOCH}, E.INVALID_REQUEST),
    ("no timeout", EMPTY, 4, {"transaction_timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
    ("negative timeout", EMPTY, 4, {"transaction_timeout_ms": -1}, E.INVALID_TRANSACTION_TIMEOUT),
    (
        "long timeout",
        EMPTY,
        4,
        {"transaction_timeout_ms": MAX_MS + 1},
        E.INVALID_TRANSACTION_TIMEOUT,
    ),
    (
        "long timeout of a new id",
        NOBODY,
        4,
        {"transaction_timeout_ms": MAX_MS + 1},
        E.INVALID_TRANSACTION_TIMEOUT,
    ),
    ("2PC", EMPTY, 6, {"enable_two_phase_commit": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (
        "2PC of a new id",
        NOBODY,
        6,
        {"enable_two_phase_commit": True},
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    ("keep prepared", EMPTY, 6, {"keep_prepared_txn": True}, E.UNSUPPORTED_VERSION),
    (
        "keep prepared of an open one",
        ONGOING,
        6,
        {"keep_prepared_txn": True},
        E.UNSUPPORTED_VERSION,
    ),
    ("committing", COMMITTING, 4, {}, E.CONCURRENT_TRANSACTIONS),
    ("aborting", ABORTING, 4, {}, E.CONCURRENT_TRANSACTIONS),
    ("old epoch", EMPTY, 4, {"producer_id": PID, "producer_epoch": OLD}, E.PRODUCER_FENCED),
    ("old epoch, v5", EMPTY, 5, {"producer_id": PID, "producer_epoch": OLD}, E.PRODUCER_FENCED),
    (
        "old epoch, v3",
        EMPTY,
        3,
        {"producer_id": PID, "producer_epoch": OLD},
        E.INVALID_PRODUCER_EPOCH,
    ),
    ("newer epoch", EMPTY, 4, {"producer_id": PID, "producer_epoch": NEW}, E.PRODUCER_FENCED),
    ("other id", EMPTY, 4, {"producer_id": 99, "producer_epoch": EPOCH}, E.PRODUCER_FENCED),
    (
        "other id, v3",
        EMPTY,
        3,
        {"producer_id": 99, "producer_epoch": EPOCH},
        E.INVALID_PRODUCER_EPOCH,
    ),
    ("old epoch, open", ONGOING, 4, {"producer_id": PID, "producer_epoch": OLD}, E.PRODUCER_FENCED),
    (
        "old epoch, committing",
        COMMITTING,
        4,
        {"producer_id": PID, "producer_epoch": OLD},
        E.CONCURRENT_TRANSACTIONS,
    ),
]


@pytest.mark.parametrize(
    ("what", "known", "version", "fields", "code"), INIT, ids=[row[0] for row in INIT]
)
def test_init_producer_id(
    what: str, known: TransactionMetadata | None, version: int, fields: dict[str, Any], code: E
) -> None:
    decision = shard(known).decide_init_producer_id(
        init(**fields), version, "waiter", now_ms=NOW_MS
    )
    assert error_of(decision) == code
    response = decision.effects[0].response
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("settings", "fields", "code"),
    [
        (
            replace(CLASSIC_SETTINGS, transaction_two_phase_commit_enable=True),
            {"keep_prepared_txn": True},
            E.UNSUPPORTED_VERSION,
        ),
        (
            TWO_PHASE_SETTINGS,
            {"keep_prepared_txn": True, "transaction_timeout_ms": 0},
            E.INVALID_TRANSACTION_TIMEOUT,
        ),
    ],
)
def test_init_producer_id_with_two_phase_commit(
    settings: TransactionSettings, fields: dict[str, Any], code: E
) -> None:
    decision = shard(ONGOING, settings).decide_init_producer_id(
        init(**fields), 6, "waiter", now_ms=NOW_MS
    )
    assert error_of(decision) == code


JOIN: list[tuple[str, TransactionMetadata | None, int, dict[str, Any], E]] = [
    ("empty id", EMPTY, 3, {"transactional_id": ""}, E.INVALID_REQUEST),
    ("unknown id", NOBODY, 3, {}, E.INVALID_PRODUCER_ID_MAPPING),
    ("other producer", EMPTY, 3, {"producer_id": 99}, E.INVALID_PRODUCER_ID_MAPPING),
    ("old epoch", EMPTY, 3, {"producer_epoch": OLD}, E.PRODUCER_FENCED),
    ("old epoch, v2", EMPTY, 2, {"producer_epoch": OLD}, E.PRODUCER_FENCED),
    ("old epoch, v1", EMPTY, 1, {"producer_epoch": OLD}, E.INVALID_PRODUCER_EPOCH),
    ("newer epoch", ONGOING, 3, {"producer_epoch": NEW}, E.PRODUCER_FENCED),
    ("newer epoch, v0", ONGOING, 0, {"producer_epoch": NEW}, E.INVALID_PRODUCER_EPOCH),
    ("committing", COMMITTING, 0, {}, E.CONCURRENT_TRANSACTIONS),
    ("aborting", ABORTING, 5, {}, E.CONCURRENT_TRANSACTIONS),
    ("old epoch, aborting", ABORTING, 3, {"producer_epoch": OLD}, E.CONCURRENT_TRANSACTIONS),
]


@pytest.mark.parametrize(
    ("what", "known", "version", "fields", "code"), JOIN, ids=[row[0] for row in JOIN]
)
def test_add_partitions(
    what: str, known: TransactionMetadata | None, version: int, fields: dict[str, Any], code: E
) -> None:
    decision = shard(known).decide_add_partitions(
        join(A0, A1, **fields), version, "waiter", now_ms=NOW_MS
    )
    assert decision.records == ()
    (reply,) = decision.effects
    (topic,) = reply.response.topic_results
    assert [row.partition_error_code for row in topic.results_by_partition] == [code, code]


@pytest.mark.parametrize(
    ("what", "known", "version", "fields", "code"), JOIN[:-1], ids=[row[0] for row in JOIN[:-1]]
)
def test_add_offsets(
    what: str, known: TransactionMetadata | None, version: int, fields: dict[str, Any], code: E
) -> None:
    decision = shard(known).decide_add_offsets(
        add_offsets(**fields), min(version, 4), "waiter", offsets_partition=OFFSETS, now_ms=NOW_MS
    )
    assert error_of(decision) == code


VERIFY: list[tuple[str, TransactionMetadata | None, dict[str, Any], E]] = [
    ("empty id", ONGOING, {"transactional_id": ""}, E.INVALID_REQUEST),
    ("unknown id", NOBODY, {}, E.INVALID_PRODUCER_ID_MAPPING),
    ("other producer", ONGOING, {"producer_id": 99}, E.INVALID_PRODUCER_ID_MAPPING),
    ("old epoch", ONGOING, {"producer_epoch": OLD}, E.PRODUCER_FENCED),
    ("newer epoch", ONGOING, {"producer_epoch": NEW}, E.PRODUCER_FENCED),
    ("old epoch, committing", COMMITTING, {"producer_epoch": OLD}, E.PRODUCER_FENCED),
    ("committing", COMMITTING, {}, E.CONCURRENT_TRANSACTIONS),
    ("aborting", ABORTING, {}, E.CONCURRENT_TRANSACTIONS),
    ("not joined", ONGOING, {}, E.TRANSACTION_ABORTABLE),
    ("nothing open", COMMITTED, {}, E.TRANSACTION_ABORTABLE),
]


@pytest.mark.parametrize(
    ("what", "known", "fields", "code"), VERIFY, ids=[row[0] for row in VERIFY]
)
def test_verification(
    what: str, known: TransactionMetadata | None, fields: dict[str, Any], code: E
) -> None:
    asked = join(A1, verify_only=True, **fields)
    decision = shard(known).decide_add_partitions(asked, 4, "waiter", now_ms=NOW_MS)
    assert decision.records == ()
    (reply,) = decision.effects
    assert reply.response.topic_results[0].results_by_partition[0].partition_error_code == code


WRONG, FENCED, BUSY = E.INVALID_TXN_STATE, E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS
UNMAPPED = E.INVALID_PRODUCER_ID_MAPPING
COMMIT, ABORT = True, False

END_CLASSIC: list[tuple[str, TransactionMetadata | None, int, bool, dict[str, Any], E]] = [
    ("empty id", ONGOING, 3, COMMIT, {"transactional_id": ""}, E.INVALID_REQUEST),
    ("unknown id", NOBODY, 3, COMMIT, {}, UNMAPPED),
    ("other producer", ONGOING, 3, COMMIT, {"producer_id": 99}, UNMAPPED),
    ("old epoch", ONGOING, 3, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("old epoch, v2", ONGOING, 2, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("old epoch, v1", ONGOING, 1, COMMIT, {"producer_epoch": OLD}, E.INVALID_PRODUCER_EPOCH),
    ("newer epoch, v0", ONGOING, 0, ABORT, {"producer_epoch": NEW}, E.INVALID_PRODUCER_EPOCH),
    ("newer epoch", ONGOING, 4, ABORT, {"producer_epoch": NEW}, FENCED),
    ("epoch before a bump", COMMITTED, 4, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("commit of nothing", EMPTY, 3, COMMIT, {}, WRONG),
    ("abort of nothing", EMPTY, 3, ABORT, {}, WRONG),
    ("commit while committing", COMMITTING, 3, COMMIT, {}, BUSY),
    ("abort while committing", COMMITTING, 3, ABORT, {}, BUSY),
    ("commit while aborting", ABORTING, 3, COMMIT, {}, BUSY),
    ("abort while aborting", ABORTING, 3, ABORT, {}, BUSY),
    ("old epoch while aborting", ABORTING, 3, ABORT, {"producer_epoch": OLD}, FENCED),
    ("abort after commit", COMMITTED, 3, ABORT, {}, WRONG),
    ("commit after abort", ABORTED, 3, COMMIT, {}, WRONG),
    ("commit again", COMMITTED, 3, COMMIT, {}, E.NONE),
    ("abort again", ABORTED, 3, ABORT, {}, E.NONE),
]

# "before": the epoch that was bumped to the present one.
END_BUMPING: list[tuple[str, TransactionMetadata | None, int, bool, dict[str, Any], E]] = [
    ("v5: empty id", ONGOING, 5, COMMIT, {"transactional_id": ""}, E.INVALID_REQUEST),
    ("v5: unknown id", NOBODY, 5, COMMIT, {}, UNMAPPED),
    ("v5: other producer", ONGOING, 5, COMMIT, {"producer_id": 99}, UNMAPPED),
    (
        "v5: other producer, before",
        COMMITTED,
        5,
        COMMIT,
        {"producer_id": 99, "producer_epoch": OLD},
        UNMAPPED,
    ),
    ("v5: before, open", ONGOING, 5, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("v5: newer epoch", ONGOING, 5, ABORT, {"producer_epoch": NEW}, FENCED),
    ("v5: older than before", COMMITTED_2, 5, COMMIT, {"producer_epoch": OLD - 1}, FENCED),
    ("v5: newer, ended", COMMITTED_2, 5, COMMIT, {"producer_epoch": NEW}, FENCED),
    ("v5: commit of nothing", EMPTY, 5, COMMIT, {}, WRONG),
    ("v5: commit of nothing, before", EMPTY, 5, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("v5: abort of nothing, before", EMPTY, 5, ABORT, {"producer_epoch": OLD}, FENCED),
    ("v5: committing", COMMITTING, 5, COMMIT, {"producer_epoch": OLD}, BUSY),
    ("v5: opposite while committing", COMMITTING, 5, ABORT, {"producer_epoch": OLD}, BUSY),
    ("v5: opposite while aborting", ABORTING, 5, COMMIT, {"producer_epoch": OLD}, BUSY),
    (
        "v5: next id while aborting",
        ABORTING,
        5,
        ABORT,
        {"producer_id": 99, "producer_epoch": 0},
        BUSY,
    ),
    ("v5: abort after commit, before", COMMITTED_2, 5, ABORT, {"producer_epoch": OLD}, WRONG),
    ("v5: commit after commit, now", COMMITTED_2, 5, COMMIT, {}, WRONG),
    ("v5: commit after abort, before", ABORTED_2, 5, COMMIT, {"producer_epoch": OLD}, WRONG),
    ("v5: commit after abort, now", ABORTED_2, 5, COMMIT, {}, WRONG),
    ("v5: before a classic commit", COMMITTED, 5, COMMIT, {"producer_epoch": OLD}, FENCED),
    ("v5: before a classic abort", ABORTED, 5, ABORT, {"producer_epoch": OLD}, FENCED),
    ("v5: commit again", COMMITTED_2, 5, COMMIT, {"producer_epoch": OLD}, E.NONE),
    ("v5: abort again", ABORTED_2, 5, ABORT, {"producer_epoch": OLD}, E.NONE),
]
END = END_CLASSIC + END_BUMPING


@pytest.mark.parametrize(
    ("what", "known", "version", "committed", "fields", "code"), END, ids=[row[0] for row in END]
)
def test_end_txn(
    what: str,
    known: TransactionMetadata | None,
    version: int,
    committed: bool,
    fields: dict[str, Any],
    code: E,
) -> None:
    request = end(committed, **fields)
    decision = shard(known).decide_end_txn(request, version, "waiter", now_ms=NOW_MS)
    assert error_of(decision) == code
    if code is not E.NONE:
        response = decision.effects[0].response
        assert (response.producer_id, response.producer_epoch) == (-1, -1)


def test_a_roll_over_is_recognized_by_the_producer_that_made_it_alone() -> None:
    rolled = replace(COMMITTED_2, producer_id=100, producer_epoch=0)
    stay = replace(COMMITTED_2, producer_epoch=0)
    rows = [
        (rolled, COMMIT, PID, LAST_EPOCH, E.NONE),
        (rolled, ABORT, PID, LAST_EPOCH, WRONG),
        (rolled, COMMIT, PID, LAST_EPOCH - 1, UNMAPPED),
        (rolled, COMMIT, 99, LAST_EPOCH, UNMAPPED),
        (stay, COMMIT, PID, LAST_EPOCH, FENCED),
    ]
    for known, committed, producer_id, epoch, code in rows:
        request = end(committed, producer_id=producer_id, producer_epoch=epoch)
        decision = shard(known).decide_end_txn(request, 5, "waiter", now_ms=NOW_MS)
        assert error_of(decision) == code, (known.producer_id, committed, producer_id, epoch)

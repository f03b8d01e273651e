"""Wrong transaction requests by raw frames, and the exact error of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat.coordinator_case import Case, failures
from compat.raw_client import ask
from compat.raw_requests import produce
from compat.transaction_requests import TransactionWorld as W
from compat.transaction_requests import add, add_many, add_offsets, end, init, offsets, records
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

DAY_MS = 86_400_000


def t0(world: W) -> tuple[str, int]:
    return world.topic, 0


def of(who: Any) -> dict[str, int]:
    return {"producer_id": who.producer_id, "producer_epoch": who.epoch}


INIT = [
    Case("empty id", "InitProducerId", 4, lambda w: init(""), E.INVALID_REQUEST),
    Case(
        "timeout 0", "InitProducerId", 4, lambda w: init(w["a"], 0), E.INVALID_TRANSACTION_TIMEOUT
    ),
    Case(
        "timeout -1", "InitProducerId", 4, lambda w: init(w["a"], -1), E.INVALID_TRANSACTION_TIMEOUT
    ),
    Case(
        "timeout of a day",
        "InitProducerId",
        4,
        lambda w: init(w["a"], DAY_MS),
        E.INVALID_TRANSACTION_TIMEOUT,
    ),
    Case(
        "id without epoch",
        "InitProducerId",
        4,
        lambda w: init(w["a"], producer_id=5),
        E.INVALID_REQUEST,
    ),
    Case(
        "epoch without id",
        "InitProducerId",
        4,
        lambda w: init(w["a"], producer_epoch=5),
        E.INVALID_REQUEST,
    ),
    Case(
        "another's producer id",
        "InitProducerId",
        4,
        lambda w: init(w.idle[0], **of(w.idle.other())),
        E.PRODUCER_FENCED,
    ),
    Case(
        "another's producer id",
        "InitProducerId",
        3,
        lambda w: init(w.idle[0], **of(w.idle.other())),
        E.INVALID_PRODUCER_EPOCH,
    ),
    Case(
        "fenced",
        "InitProducerId",
        4,
        lambda w: init(w.fenced[0], **of(w.fenced)),
        E.PRODUCER_FENCED,
    ),
    Case(
        "an epoch to come",
        "InitProducerId",
        4,
        lambda w: init(w.idle[0], **of(w.idle.newer())),
        E.PRODUCER_FENCED,
    ),
    Case("no transactional id", "InitProducerId", 4, lambda w: init(None), E.NONE),
    Case(
        "no transactional id, negative timeout",
        "InitProducerId",
        4,
        lambda w: init(None, -1),
        E.NONE,
    ),
]

ADD = [
    Case("again", "AddPartitionsToTxn", 3, lambda w: add(w.ongoing, t0(w)), E.NONE),
    Case(
        "unknown id",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.stranger, t0(w)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case(
        "empty id",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle._replace(transactional_id=""), t0(w)),
        E.INVALID_REQUEST,
    ),
    Case(
        "another's producer id",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle.other(), t0(w)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case("old epoch", "AddPartitionsToTxn", 3, lambda w: add(w.fenced, t0(w)), E.PRODUCER_FENCED),
    Case(
        "old epoch",
        "AddPartitionsToTxn",
        1,
        lambda w: add(w.fenced, t0(w)),
        E.INVALID_PRODUCER_EPOCH,
    ),
    Case(
        "an epoch to come",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle.newer(), t0(w)),
        E.PRODUCER_FENCED,
    ),
    Case(
        "unknown topic",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle, (w["none"], 0)),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "unknown partition",
        "AddPartitionsToTxn",
        3,
        lambda w: add(w.idle, (w.topic, 9)),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "verify: not part",
        "AddPartitionsToTxn",
        4,
        lambda w: add_many(w.ongoing, (w.topic, 1), verify=True),
        E.TRANSACTION_ABORTABLE,
    ),
    Case(
        "verify: part",
        "AddPartitionsToTxn",
        4,
        lambda w: add_many(w.ongoing, t0(w), verify=True),
        E.NONE,
    ),
    Case(
        "verify: ended",
        "AddPartitionsToTxn",
        4,
        lambda w: add_many(w.committed, t0(w), verify=True),
        E.TRANSACTION_ABORTABLE,
    ),
    Case(
        "verify: unknown id",
        "AddPartitionsToTxn",
        4,
        lambda w: add_many(w.stranger, t0(w), verify=True),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case(
        "verify: old epoch",
        "AddPartitionsToTxn",
        4,
        lambda w: add_many(w.fenced, t0(w), verify=True),
        E.PRODUCER_FENCED,
    ),
]

ADD_OFFSETS = [
    Case("no group id", "AddOffsetsToTxn", 3, lambda w: add_offsets(w.with_offsets, ""), E.NONE),
    Case(
        "unknown id",
        "AddOffsetsToTxn",
        3,
        lambda w: add_offsets(w.stranger, "g"),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case(
        "another's producer id",
        "AddOffsetsToTxn",
        3,
        lambda w: add_offsets(w.idle.other(), "g"),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case(
        "old epoch", "AddOffsetsToTxn", 3, lambda w: add_offsets(w.fenced, "g"), E.PRODUCER_FENCED
    ),
    Case(
        "old epoch",
        "AddOffsetsToTxn",
        1,
        lambda w: add_offsets(w.fenced, "g"),
        E.INVALID_PRODUCER_EPOCH,
    ),
]

END = [
    Case("nothing begun", "EndTxn", 3, lambda w: end(w.idle), E.INVALID_TXN_STATE),
    Case(
        "nothing begun, abort",
        "EndTxn",
        3,
        lambda w: end(w.idle, commit=False),
        E.INVALID_TXN_STATE,
    ),
    Case("unknown id", "EndTxn", 3, lambda w: end(w.stranger), E.INVALID_PRODUCER_ID_MAPPING),
    Case(
        "empty id",
        "EndTxn",
        3,
        lambda w: end(w.idle._replace(transactional_id="")),
        E.INVALID_REQUEST,
    ),
    Case(
        "another's producer id",
        "EndTxn",
        3,
        lambda w: end(w.ongoing.other()),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case("old epoch", "EndTxn", 3, lambda w: end(w.fenced), E.PRODUCER_FENCED),
    Case("old epoch", "EndTxn", 1, lambda w: end(w.fenced), E.INVALID_PRODUCER_EPOCH),
    Case("an epoch to come", "EndTxn", 3, lambda w: end(w.ongoing.newer()), E.PRODUCER_FENCED),
    Case("committed again", "EndTxn", 3, lambda w: end(w.committed), E.NONE),
    Case(
        "aborted after the commit",
        "EndTxn",
        3,
        lambda w: end(w.committed, commit=False),
        E.INVALID_TXN_STATE,
    ),
    Case("aborted again", "EndTxn", 3, lambda w: end(w.aborted, commit=False), E.NONE),
    Case("committed after the abort", "EndTxn", 3, lambda w: end(w.aborted), E.INVALID_TXN_STATE),
]

OFFSETS = [
    Case(
        "no group id",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, "", w.topic),
        E.INVALID_GROUP_ID,
    ),
    Case(
        "group is not part",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.ongoing, w["g"], w.topic),
        E.INVALID_TXN_STATE,
    ),
    Case(
        "unknown id",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.stranger, w["g"], w.topic),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Case(
        "old epoch",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.fenced, w["g"], w.topic),
        E.INVALID_PRODUCER_EPOCH,
    ),
    Case(
        "unknown member",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, w.groups["stable"], w.topic, member="x", generation=1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "stale generation",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(
            w.with_offsets, w.groups["stable"], w.topic, member=w.groups.member, generation=0
        ),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "fenced instance",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(
            w.with_offsets,
            w.groups["fixed"],
            w.topic,
            member=w.groups.fenced,
            generation=1,
            instance="i",
        ),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "unknown topic",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, w.groups["empty"], w["none"]),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "metadata of 5000",
        "TxnOffsetCommit",
        3,
        lambda w: offsets(w.with_offsets, w.groups["empty"], w.topic, metadata="m" * 5000),
        E.OFFSET_METADATA_TOO_LARGE,
    ),
]

LISTING = [
    Case(
        "unknown",
        "DescribeTransactions",
        0,
        lambda w: {"transactional_ids": [w["stranger"]]},
        E.TRANSACTIONAL_ID_NOT_FOUND,
    ),
    Case(
        "no id", "DescribeTransactions", 0, lambda w: {"transactional_ids": [""]}, E.INVALID_REQUEST
    ),
    Case("nothing asked", "DescribeTransactions", 0, lambda w: {"transactional_ids": []}, E.NONE),
    Case("unknown state", "ListTransactions", 0, lambda w: {"state_filters": ["nonsense"]}, E.NONE),
    Case(
        "bad pattern",
        "ListTransactions",
        2,
        lambda w: {"transactional_id_pattern": "("},
        E.INVALID_REGULAR_EXPRESSION,
    ),
    Case(
        "unknown topic",
        "DescribeProducers",
        0,
        lambda w: {"topics": [{"name": w["none"], "partition_indexes": [0]}]},
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "unknown partition",
        "DescribeProducers",
        0,
        lambda w: {"topics": [{"name": w.topic, "partition_indexes": [9]}]},
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
]

CASES: list[Case] = [*INIT, *ADD, *ADD_OFFSETS, *END, *OFFSETS, *LISTING]

# name -> (who, partition, sequence, Produce version, code)
PRODUCED = {
    "partition that is not part, v9": ("ongoing", 1, 0, 9, E.INVALID_TXN_STATE),
    "partition that is not part, v11": ("ongoing", 1, 0, 11, E.TRANSACTION_ABORTABLE),
    "nothing begun": ("idle", 0, 0, 9, E.INVALID_TXN_STATE),
    "unknown id": ("stranger", 0, 0, 9, E.INVALID_PRODUCER_ID_MAPPING),
    "old epoch": ("fenced", 0, 0, 9, E.INVALID_PRODUCER_EPOCH),
    "after the commit": ("committed", 0, 1, 9, E.INVALID_TXN_STATE),
    "gap in the sequence": ("ongoing", 0, 7, 9, E.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "again": ("ongoing", 0, 0, 9, E.NONE),
}


@pytest.fixture(scope="module")
def world(quick_broker: LocalBroker) -> Iterator[W]:
    made = W(quick_broker.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_wrong_transaction_request_gets_the_code_of_apache_kafka(world: W, case: Case) -> None:
    case.check(world)


@pytest.mark.parametrize("name", PRODUCED)
def test_a_wrong_produce_of_a_transaction_gets_the_code_of_apache_kafka(
    world: W, name: str
) -> None:
    whose, partition, sequence, version, code = PRODUCED[name]
    who = getattr(world, whose)
    sent = produce(
        world.topic,
        records(who, sequence),
        partition=partition,
        transactional_id=who.transactional_id,
    )
    answer = ask(world.bootstrap, "Produce", version, sent)
    assert failures(answer) == ([code] if code else []), answer

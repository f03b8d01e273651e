"""``delivery=``: each guarantee holds where it is tested, and reports its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from millstream.client import ClientError, Consumer, DeliveryFailed
from millstream.testing import Kafka


def read(millstream: Kafka, **options) -> list[bytes]:
    with Consumer(
        millstream.bootstrap, "orders", group="readers", until_end=True, **options
    ) as consumer:
        return [record.value for record in consumer]


def crash_while_handling(millstream: Kafka, **options) -> None:
    """Run a consumer that dies in its first batch."""
    with (
        pytest.raises(ZeroDivisionError),
        Consumer(millstream.bootstrap, "orders", group="readers", **options) as consumer,
    ):
        for _batch in consumer.batches():
            raise ZeroDivisionError


def test_lost_response_duplicates_a_record_unless_exactly_once(millstream: Kafka) -> None:
    millstream.topic("orders")
    for delivery, written in (("at-least-once", 2), ("exactly-once", 1)):
        with (
            millstream.faults.drop_response("Produce"),
            millstream.producer(delivery=delivery) as producer,
        ):
            producer.send("orders", delivery)
        values = [record.value for record in millstream.consume("orders")]
        assert values.count(delivery.encode()) == written


def test_at_most_once_does_not_send_again(millstream: Kafka) -> None:
    millstream.topic("orders")
    producer = millstream.producer(delivery="at-most-once")
    with millstream.faults.drop_request("Produce"), pytest.raises(DeliveryFailed), producer:
        producer.send("orders", b"lost")
    assert millstream.consume("orders") == []


def test_crash_repeats_records_at_least_once_but_not_at_most_once(millstream: Kafka) -> None:
    millstream.produce("orders", [b"1"])
    crash_while_handling(millstream, delivery="at-least-once")
    crash_while_handling(millstream, delivery="at-most-once")
    assert read(millstream) == []


def test_committed_records_not_handed_out_go_to_the_next_loop(millstream: Kafka) -> None:
    millstream.produce("orders", [("key", str(n)) for n in range(6)])
    with Consumer(
        millstream.bootstrap, "orders", group="readers", delivery="at-most-once", until_end=True
    ) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 2:
                break
        seen += [record.value for record in consumer]
    assert seen == [str(n).encode() for n in range(6)]


def test_exactly_once_commits_offsets_with_the_results(millstream: Kafka) -> None:
    millstream.produce("orders", [b"1", b"2"])
    for fails in (True, False):
        consumer = Consumer(
            millstream.bootstrap, "orders", group="readers", delivery="exactly-once", until_end=True
        )
        producer = millstream.producer(delivery="exactly-once", transactional_id="copier")
        try:
            for batch in consumer.batches():
                with producer.transaction() as transaction:
                    for record in batch:
                        transaction.send("copies", record.value)
                    transaction.commit_offsets(consumer)
                    if fails:
                        raise ZeroDivisionError
        except ZeroDivisionError:
            assert fails
        finally:
            consumer.close()
    assert [record.value for record in millstream.consume("copies")] == [b"1", b"2"]
    assert read(millstream) == []


def copy_exactly_once(
    millstream: Kafka, fails: Callable[[int, str], bool], *, known: bool, retries: int = 0
) -> list[bytes]:
    """Copy orders in transactions that may fail ``before`` and ``after`` their offsets.

    The failures are caught. Return the records that were handed out.
    """
    tries, handed_out = 0, []
    producer = millstream.producer(delivery="exactly-once", transactional_id="copier")
    with Consumer(
        millstream.bootstrap, "orders", group="readers", delivery="exactly-once", until_end=True
    ) as consumer:
        for batch in consumer.batches(max_records=2):
            handed_out += [record.value for record in batch]
            for _attempt in range(1 + retries):
                tries += 1
                with (
                    contextlib.suppress(ZeroDivisionError),
                    producer.transaction(consumer if known else None) as transaction,
                ):
                    for record in batch:
                        transaction.send("copies", record.value)
                    if fails(tries, "before"):
                        raise ZeroDivisionError
                    transaction.commit_offsets(consumer)
                    if fails(tries, "after"):
                        raise ZeroDivisionError
                    break
    return handed_out


ORDERS = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_records_of_an_aborted_transaction_are_read_again(millstream: Kafka, when: str) -> None:
    millstream.topic("orders", 2)
    millstream.produce("orders", [(value, value) for value in ORDERS])
    handed_out = copy_exactly_once(
        millstream, lambda tries, at: at == when and tries in (1, 2, 4, 7), known=True
    )
    assert sorted(record.value for record in millstream.consume("copies")) == ORDERS
    assert len(handed_out) > len(ORDERS)
    assert not any(millstream.lag("readers").values())


def test_consumer_given_once_is_known_to_the_producer(millstream: Kafka) -> None:
    """The last batch fails before its transaction knows the consumer, when all was read."""
    millstream.produce("orders", ORDERS)
    copy_exactly_once(millstream, lambda tries, at: at == "before" and tries == 5, known=False)
    assert [record.value for record in millstream.consume("copies")] == ORDERS


def test_aborted_transaction_may_be_repeated_with_the_same_records(millstream: Kafka) -> None:
    millstream.produce("orders", ORDERS)

    def fails(tries: int, at: str) -> bool:
        return at == "after" and tries % 2 == 1

    assert copy_exactly_once(millstream, fails, known=False, retries=1) == ORDERS
    assert [record.value for record in millstream.consume("copies")] == ORDERS


def test_offsets_of_an_unknown_consumer_after_an_abort_are_rejected(millstream: Kafka) -> None:
    millstream.produce("orders", ORDERS)
    with pytest.raises(ClientError, match=r"call consumer\.rewind"):
        copy_exactly_once(millstream, lambda tries, at: at == "before" and tries == 1, known=False)
    copy_exactly_once(millstream, lambda tries, at: False, known=False)
    assert [record.value for record in millstream.consume("copies")] == ORDERS


def test_iteration_rewinds_after_an_abort(millstream: Kafka) -> None:
    millstream.produce("orders", ORDERS)
    consumer = millstream.consumer(
        "orders", group="readers", delivery="exactly-once", until_end=True
    )
    producer = millstream.producer(delivery="exactly-once", transactional_id="copier")
    seen: list[bytes] = []
    for record in consumer:
        seen.append(record.value)
        with contextlib.suppress(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send("copies", record.value)
            transaction.commit_offsets(consumer)
            if len(seen) in (3, 11):
                raise ZeroDivisionError
    assert seen == [*ORDERS[:3], *ORDERS[2:], ORDERS[9]]
    assert [record.value for record in millstream.consume("copies")] == ORDERS


def test_rewound_consumer_commits_nothing_and_starts_over(millstream: Kafka) -> None:
    millstream.produce("orders", ORDERS)
    consumer = millstream.consumer("orders", group="readers", until_end=True)
    handed_out: list[bytes] = []
    for batch in consumer.batches(max_records=4):
        handed_out += [record.value for record in batch]
        if len(handed_out) in (4, 8):
            consumer.rewind()
    assert handed_out == [*ORDERS[:4], *ORDERS[:4], *ORDERS]
    assert not any(millstream.lag("readers").values())
    with pytest.raises(ClientError, match="without a group"):
        millstream.consumer("orders").rewind()


def test_guarantee_reports_its_settings(
    millstream: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "millstream.client")
    producer = millstream.producer(delivery="at-least-once")
    assert producer.guarantee is not None
    assert producer.guarantee.settings["acks"] == "all"
    assert "acks=all" in caplog.text
    with pytest.raises(ClientError, match="did you mean 'exactly-once'"):
        millstream.producer(delivery="exacly-once")
    with pytest.raises(ClientError, match="give the consumer a group"):
        millstream.consumer(millstream.topic("orders"), delivery="at-least-once")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delivery": "at-least-once", "acks": 0}, "acks=0 contradicts delivery='at-least-once'"),
        ({"delivery": "at-least-once", "idempotent": True}, "idempotent=True contradicts"),
        ({"delivery": "exactly-once", "idempotent": False}, "which means idempotent=True"),
        ({"delivery": "exactly-once", "options": {"acks": "1"}}, "acks=1 contradicts"),
        ({"delivery": "at-most-once", "options": {"retries": 5}}, "retries=5 contradicts"),
        ({"delivery": "at-least-once", "transactional_id": "x"}, "transactions write exactly once"),
    ],
)
def test_contradicting_producer_arguments_are_rejected(
    millstream: Kafka, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClientError, match=reason):
        millstream.producer(**options)


def test_redundant_producer_arguments_are_accepted(millstream: Kafka) -> None:
    with millstream.producer(delivery="exactly-once", acks="all", options={"acks": -1}) as producer:
        producer.send("orders", b"1")
    assert len(millstream.consume("orders")) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delivery": "exactly-once", "auto_commit": True}, "auto_commit=True contradicts"),
        ({"delivery": "at-most-once", "auto_commit": False}, "which means auto_commit=True"),
        (
            {"delivery": "at-least-once", "isolation": "read_uncommitted"},
            "isolation=read_uncommitted",
        ),
        (
            {"delivery": "at-most-once", "options": {"enable.auto.commit": True}},
            "enable.auto.commit=True",
        ),
        ({"isolation": "bogus"}, "unknown isolation 'bogus'; choose read_committed or"),
    ],
)
def test_contradicting_consumer_arguments_are_rejected(
    millstream: Kafka, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClientError, match=reason):
        millstream.consumer(millstream.topic("orders"), group="readers", **options)


def test_producer_continues_after_an_aborted_transaction(millstream: Kafka) -> None:
    """Records that were queued or in flight at the abort leave no gap in the sequence."""
    producer = millstream.producer(transactional_id="booking")
    for number in range(6):
        try:
            with producer.transaction() as transaction:
                transaction.send("orders", str(number))
                if number % 2:
                    producer.poll(0.02 * (number - 1))  # perhaps it is sent by then
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert [record.value for record in millstream.consume("orders")] == [b"0", b"2", b"4"]

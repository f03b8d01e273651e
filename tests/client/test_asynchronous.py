"""Producers and consumers under asyncio."""

from __future__ import annotations

import asyncio
import threading

import pytest

from millstream import AsyncConsumer, AsyncProducer
from millstream.client import ClientError, DeliveryFailed
from millstream.client.errors import ProducerFenced
from millstream.client.producer import Delivery
from millstream.testing import Kafka


def test_records_are_sent_and_awaited(millstream: Kafka) -> None:
    async def story() -> list[int]:
        async with AsyncProducer(millstream.bootstrap, value="json", idempotent=False) as producer:
            first = await producer.send("orders", {"n": 0}, key="a")
            rest = await asyncio.gather(*[producer.send("orders", {"n": n}) for n in range(1, 500)])
        return [first.offset, *sorted(delivery.offset for delivery in rest)]

    assert asyncio.run(story()) == list(range(500))
    assert sorted(
        record.value["n"] for record in millstream.consume("orders", value="json")
    ) == list(range(500))


def test_failure_is_raised_where_it_is_awaited(millstream: Kafka) -> None:
    millstream.topic("orders")

    async def story() -> None:
        async with AsyncProducer(millstream.bootstrap, idempotent=False) as producer:
            await producer.send("orders", b"1")
            refused = millstream.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED")
            with refused, pytest.raises(DeliveryFailed, match="orders"):
                await producer.send("orders", b"2")
            await producer.flush()  # who awaited it knows

    asyncio.run(story())


def test_unawaited_failures_are_raised_by_flush_once(millstream: Kafka) -> None:
    millstream.topic("orders")

    async def story() -> None:
        async with AsyncProducer(millstream.bootstrap, idempotent=False, linger_ms=50) as producer:
            await producer.send("orders", b"1")
            with millstream.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED"):
                sent = [await producer.queue("orders", b"2") for _ in range(3)]
                with pytest.raises(DeliveryFailed):
                    await asyncio.gather(sent[0])
                with pytest.raises(DeliveryFailed, match="2 records were not delivered") as raised:
                    await producer.flush()
            assert raised.value.failed == 2
            for delivery in sent:
                with pytest.raises(DeliveryFailed):
                    await delivery

    asyncio.run(story())


def test_failure_of_a_cancelled_wait_is_raised_by_flush(millstream: Kafka) -> None:
    millstream.topic("orders", max_message_bytes=100)

    async def story() -> None:
        async with AsyncProducer(millstream.bootstrap, idempotent=False) as producer:
            await producer.send("orders", b"1")
            with millstream.faults.delay("Produce", 0.2, times=1) as fault:
                sending = asyncio.create_task(producer.send("orders", b"x" * 1000))
                await asyncio.to_thread(fault.wait)
                sending.cancel()
                with pytest.raises(DeliveryFailed, match=r"larger than max\.message\.bytes"):
                    await producer.flush()

    asyncio.run(story())


def test_callback_of_a_record_is_called_on_the_loop(millstream: Kafka) -> None:
    heard: list[tuple[int, bool]] = []

    def on_delivery(delivery: Delivery) -> None:
        heard.append((delivery.offset, threading.current_thread() is threading.main_thread()))

    async def story() -> None:
        async with AsyncProducer(
            millstream.bootstrap, idempotent=False, acknowledge=True
        ) as producer:
            await producer.send("orders", b"1", on_delivery=on_delivery)

    asyncio.run(story())
    assert heard == [(0, True)]


def test_async_producer_rejects_acknowledge_false() -> None:
    with pytest.raises(ClientError, match="needs the acknowledgement of every"):
        AsyncProducer(acknowledge=False)


def test_metadata_refresh_is_off_the_loop_and_keeps_the_order(millstream: Kafka) -> None:
    millstream.topic("orders", 2)

    async def story() -> set[str]:
        threads: set[str] = set()
        async with AsyncProducer(
            millstream.bootstrap, idempotent=False, partitioner=lambda *_record: 1
        ) as async_producer:
            await async_producer.send("orders", b"0")
            producer = await async_producer.open()
            check = producer.find_topic

            def noted(topic: str) -> None:
                threads.add(threading.current_thread().name)
                check(topic)

            producer.find_topic = noted  # type: ignore[method-assign]
            producer._topics._expires_s["orders"] = 0.0  # as after a minute
            await asyncio.gather(*[async_producer.send("orders", str(n)) for n in range(1, 50)])
        return threads

    (asked_on,) = asyncio.run(story())
    assert asked_on.startswith("async-producer")
    assert [int(record.value) for record in millstream.consume("orders")] == list(range(50))


def test_group_is_read_and_committed_without_blocking_the_loop(millstream: Kafka) -> None:
    millstream.produce("orders", [str(n) for n in range(1000)])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def story() -> int:
        ticking = asyncio.create_task(tick())
        seen = 0
        async with AsyncConsumer(
            millstream.bootstrap, "orders", group="readers", until_end=True
        ) as consumer:
            async for batch in consumer.batches(max_records=100):
                seen += len(batch)
            assert (await consumer.metrics())["records_lag_max"] == 0
        ticking.cancel()
        return seen

    assert asyncio.run(story()) == 1000
    assert ticks > 0
    assert sum(millstream.lag("readers").values()) == 0


def test_transactions_are_committed_or_aborted(millstream: Kafka) -> None:
    millstream.produce("orders", [b"1"])

    async def story() -> None:
        async with (
            AsyncConsumer(
                millstream.bootstrap, "orders", group="readers", delivery="exactly-once"
            ) as consumer,
            AsyncProducer(millstream.bootstrap, transactional_id="copier") as producer,
        ):
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await transaction.send("copies", b"never")
                    raise ZeroDivisionError
            while not (records := await consumer.poll()):
                pass
            async with producer.transaction() as transaction:
                await transaction.send("copies", records[0].value)
                await transaction.commit_offsets(consumer)

    asyncio.run(story())
    assert [record.value for record in millstream.consume("copies")] == [b"1"]
    assert sum(millstream.lag("readers").values()) == 0


def test_fenced_producer_raises_instead_of_waiting_forever(millstream: Kafka) -> None:
    """The reporting thread used to end with the fatal error, and no report came after it."""

    async def story() -> None:
        async with (
            AsyncProducer(millstream.bootstrap, transactional_id="copier") as first,
            AsyncProducer(millstream.bootstrap, transactional_id="copier") as second,
        ):
            for producer in (first, second):
                async with producer.transaction():
                    await producer.send("copies", b"in time")
            with pytest.raises(ProducerFenced, match="another producer has started"):
                async with first.transaction():
                    await first.send("copies", b"late")

    asyncio.run(story())


def test_cancelled_reader_loses_nothing_and_can_be_closed(millstream: Kafka) -> None:
    millstream.topic("orders")

    async def story() -> list[bytes]:
        async with AsyncConsumer(millstream.bootstrap, "orders", group="readers") as consumer:
            seen: list[bytes] = []
            for number in range(5):
                records = aiter(consumer)
                waiting = asyncio.create_task(anext(records))
                await asyncio.sleep(0.05 * number)
                waiting.cancel()
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    seen.append(waiting.result().value)
                await records.aclose()
                await asyncio.to_thread(millstream.produce, "orders", [str(number)])
            while len(seen) < 5:
                seen += [record.value for record in await consumer.poll()]
            return seen

    assert asyncio.run(story()) == [b"0", b"1", b"2", b"3", b"4"]


def test_at_most_once_next_loop_gets_the_committed_rest(millstream: Kafka) -> None:
    millstream.produce("orders", [str(n) for n in range(6)])

    async def story() -> list[int]:
        seen: list[int] = []
        async with AsyncConsumer(
            millstream.bootstrap,
            "orders",
            group="readers",
            delivery="at-most-once",
            value="json",
            until_end=True,
        ) as consumer:
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 2:
                    break
            assert sum((await asyncio.to_thread(millstream.lag, "readers")).values()) == 0
            seen += [record.value async for record in consumer]
        return seen

    assert asyncio.run(story()) == list(range(6))
    assert sum(millstream.lag("readers").values()) == 0


@pytest.mark.parametrize("group", [None, "readers"])
def test_loop_that_ended_early_is_continued_by_the_next(
    millstream: Kafka, group: str | None
) -> None:
    millstream.produce("orders", [str(n) for n in range(8)])

    async def story() -> list[int]:
        seen: list[int] = []
        async with AsyncConsumer(
            millstream.bootstrap, "orders", group=group, value="json", until_end=True
        ) as consumer:
            for until in (2, 4):
                async for record in consumer:
                    seen.append(record.value)
                    if len(seen) == until:
                        break
            if group:
                await consumer.commit()
                assert [*(await asyncio.to_thread(millstream.lag, group)).values()] == [4]
            seen += [record.value for record in await consumer.poll(timeout_s=5)]
            await consumer.commit() if group else None
            seen += [record.value async for record in consumer]
        return seen

    assert asyncio.run(story()) == list(range(8))
    if group:
        assert sum(millstream.lag(group).values()) == 0

"""Producers and consumers under asyncio."""

from __future__ import annotations

import asyncio

import pytest

from millstream import AsyncConsumer, AsyncProducer
from millstream.client import ClientError
from millstream.testing import Kafka


def test_records_are_sent_and_awaited(millstream: Kafka) -> None:
    async def story() -> list[int]:
        async with AsyncProducer(millstream.bootstrap, value="json", idempotent=False) as producer:
            first = await producer.send("orders", {"n": 0}, key="a")
            rest = await asyncio.gather(*[producer.send("orders", {"n": n}) for n in range(1, 500)])
        return [first.offset, *sorted(one.offset for one in rest)]

    assert asyncio.run(story()) == list(range(500))
    assert sorted(one.value["n"] for one in millstream.consume("orders", value="json")) == list(range(500))


def test_a_refusal_is_raised_where_it_is_awaited(millstream: Kafka) -> None:
    millstream.topic("orders")

    async def story() -> None:
        async with AsyncProducer(millstream.bootstrap, idempotent=False) as producer:
            await producer.send("orders", b"1")
            refused = millstream.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED")
            with refused, pytest.raises(ClientError, match="orders"):
                await producer.send("orders", b"2")
            with pytest.raises(ClientError):
                await producer.flush()

    asyncio.run(story())


def test_a_group_is_read_and_committed_while_the_loop_goes_on(millstream: Kafka) -> None:
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
        async with AsyncConsumer(millstream.bootstrap, "orders", group="readers", until_end=True) as consumer:
            async for batch in consumer.batches(max_records=100):
                seen += len(batch)
            assert (await consumer.metrics())["records_lag_max"] == 0
        ticking.cancel()
        return seen

    assert asyncio.run(story()) == 1000
    assert ticks > 0
    assert sum(millstream.lag("readers").values()) == 0


def test_transactions(millstream: Kafka) -> None:
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
    assert [one.value for one in millstream.consume("copies")] == [b"1"]
    assert sum(millstream.lag("readers").values()) == 0


def test_a_reader_that_is_cancelled_loses_nothing_and_can_be_closed(millstream: Kafka) -> None:
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
                seen += [one.value for one in await consumer.poll()]
            return seen

    assert asyncio.run(story()) == [b"0", b"1", b"2", b"3", b"4"]

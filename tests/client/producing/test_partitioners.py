"""The partitions of records without one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from millstream.client import ClientError
from millstream.client.producing.partitioners import STICKY_BYTES, Sticky, murmur2
from millstream.testing import Kafka

# The results of org.apache.kafka.common.utils.Utils.murmur2, without the sign.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), KNOWN.items())
def test_keys_are_hashed_as_by_the_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0x7FFFFFFF


def spread(millstream: Kafka, partitioner, keys) -> list[int]:
    millstream.topic("orders", 4)
    with millstream.producer(partitioner=partitioner, idempotent=False) as producer:
        for number, key in enumerate(keys):
            producer.send("orders", str(number), key=key)
    return [
        record.partition
        for record in sorted(millstream.consume("orders"), key=lambda record: int(record.value))
    ]


def test_keys_go_to_the_partition_of_their_hash(millstream: Kafka) -> None:
    keys = [f"key-{n}".encode() for n in range(20)]
    assert spread(millstream, "key", keys) == [murmur2(key) % 4 for key in keys]


def test_round_robin_ignores_the_key(millstream: Kafka) -> None:
    partitions = spread(millstream, "round-robin", [b"same"] * 8)
    assert all(later == (earlier + 1) % 4 for earlier, later in pairwise(partitions))


def test_random_uses_all_partitions(millstream: Kafka) -> None:
    assert set(spread(millstream, "random", [b"same"] * 200)) == {0, 1, 2, 3}


def test_sticky_changes_the_partition_after_a_batch() -> None:
    sticky = Sticky()
    chosen = [sticky("orders", None, b"x" * (STICKY_BYTES // 4), 3) for _ in range(16)]
    runs = [chosen[at : at + 4] for at in range(0, 16, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in pairwise(runs))


def test_function_chooses_the_partition(millstream: Kafka) -> None:
    calls = []

    def by_length(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        calls.append((topic, key, partitions))
        return len(key or b"") % partitions

    assert Counter(spread(millstream, by_length, ["a", "bb", "a"])) == {1: 2, 2: 1}
    assert calls[0] == ("orders", b"a", 4)


def test_explicit_partition_wins(millstream: Kafka) -> None:
    millstream.topic("orders", 4)
    with millstream.producer(partitioner="round-robin", idempotent=False) as producer:
        producer.send("orders", b"1", partition=3)
    assert [record.partition for record in millstream.consume("orders")] == [3]


def test_unknown_names_are_rejected(millstream: Kafka) -> None:
    with pytest.raises(ClientError, match="unknown partitioner 'robin'"):
        millstream.producer(partitioner="robin")


@pytest.mark.parametrize("wrong", [-1, None, "0", 4, True, 1.0])
def test_invalid_partition_is_rejected(millstream: Kafka, wrong: object) -> None:
    with pytest.raises(
        ClientError, match=f"the partitioner returned {wrong!r} for a record for 'orders'"
    ):
        spread(millstream, lambda *_record: wrong, ["a"])

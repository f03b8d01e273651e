"""Keys go to the partition that Kafka's clients choose; rows without a key are spread evenly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.sink.partitioner import murmur2, partition_of, spread

# Results of the Java client, as signed numbers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def reference(key: bytes) -> int:
    """The same hash, a byte at a time."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * m & mask
        word = (word ^ word >> 24) * m & mask
        value = (value * m & mask) ^ word
    tail = key[whole:]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15


def test_hashes_are_those_of_the_java_client() -> None:
    hashes = murmur2(pa.array(list(KNOWN), pa.binary()))
    assert hashes.astype(np.int32).tolist() == list(KNOWN.values())


@given(st.lists(st.binary(max_size=70), max_size=50), st.integers(0, 5))
def test_any_keys_hash_as_one_by_one(keys: list[bytes], skipped: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skipped)
    assert murmur2(column).tolist() == [reference(key) for key in keys[skipped:]]


def test_partitions_agree_with_librdkafka(shared_broker, topic_name: str) -> None:
    """librdkafka's murmur2 partitioner writes each key where we say it goes."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 7, 1)])[topic_name].result(20)
    keys = [f"key-{index * 37}".encode() for index in range(200)]
    chosen: dict[bytes, int] = {}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": shared_broker.bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys:
        producer.produce(
            topic_name, b"", key, on_delivery=lambda _, m: chosen.update({m.key(): m.partition()})
        )
    assert producer.flush(30) == 0
    assert partition_of(pa.array(keys, pa.binary()), 7).tolist() == [chosen[key] for key in keys]


def test_the_number_of_partitions_may_differ_from_row_to_row() -> None:
    keys = pa.array([b"a", b"a", b"b"], pa.binary())
    partitions = partition_of(keys, np.array([1, 5, 3]))
    assert partitions.tolist() == [
        0,
        (reference(b"a") & 0x7FFFFFFF) % 5,
        (reference(b"b") & 0x7FFFFFFF) % 3,
    ]


def test_rows_without_a_key_are_spread_evenly() -> None:
    counts = np.bincount(spread(1003, 10, 7), minlength=10)
    assert counts.sum() == 1003 and counts.max() - counts.min() <= 1
    assert spread(3, 4, 2).tolist() == [2, 3, 0]

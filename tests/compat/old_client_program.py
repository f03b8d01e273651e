"""Run with an old kafka-python on its path: writes and reads records, told by one JSON object on
standard input.

It runs in a process of its own and imports nothing of this project, so that the two versions of the
library never meet. Bytes travel in base64; the answer is one JSON object.
"""

from __future__ import annotations

import base64
import json
import sys
import time


def use_a_six_that_works() -> None:
    """The copy inside the library does not import on Python 3.12 and later; the
    real one stands in.
    """
    if sys.version_info >= (3, 12):
        import six

        sys.modules["kafka.vendor.six"] = six
        sys.modules["kafka.vendor.six.moves"] = six.moves


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(told: str | None) -> bytes | None:
    return None if told is None else base64.b64decode(told)


def produce(order: dict) -> list[list[int]]:
    from kafka import KafkaProducer

    magic_1 = tuple(order["api_version"]) >= (0, 10)
    producer = KafkaProducer(
        bootstrap_servers=order["bootstrap"],
        api_version=tuple(order["api_version"]),
        compression_type=order["codec"],
        acks=order["acks"],
        linger_ms=20,
    )
    sent = [
        producer.send(
            order["topic"],
            value=data(row["value"]),
            key=data(row["key"]),
            partition=0,
            timestamp_ms=row["timestamp"] if magic_1 else None,
        )
        for row in order["rows"]
    ]
    producer.flush(30)
    found = [one.get(30) for one in sent]
    producer.close()
    return [[one.partition, one.offset] for one in found]


def consume(order: dict) -> list[dict]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=order["bootstrap"],
        api_version=tuple(order["api_version"]),
        group_id=None,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=order.get("max_partition_fetch_bytes", 1 << 20),
        fetch_max_wait_ms=50,
    )
    partition = TopicPartition(order["topic"], 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[dict] = []
    deadline = time.monotonic() + 30
    while len(found) < order["count"] and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found += [
                {
                    "offset": one.offset,
                    "timestamp": one.timestamp,
                    "key": text(one.key),
                    "value": text(one.value),
                }
                for one in records
            ]
    consumer.close()
    return found


def main() -> None:
    use_a_six_that_works()
    import kafka

    order = json.load(sys.stdin)
    done = {"produce": produce, "consume": consume}
    answers = [done[step["do"]](step) for step in order]
    json.dump({"version": kafka.__version__, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()

"""The parts of generators that need no broker."""

from collections import Counter

from bench.load.produce import Producer


class RecordingProducer(Producer):
    """A producer without a client that counts messages by partition."""

    def __init__(self, partitions: int) -> None:
        self.failed, self.partitions, self.turn, self.count = [], partitions, 0, 10_000
        self.sent: Counter[int] = Counter()
        self.kafka = self  # type: ignore[assignment]

    def _enqueue(self, partition: int, remaining: int) -> None:
        self.sent[partition] += remaining

    def flush(self, _timeout_ms: int) -> None: ...


def test_warm_up_writes_to_every_partition_and_load_by_array() -> None:
    producer = RecordingProducer(1000)
    producer.warm_up(500_500)
    assert set(producer.sent.values()) == {500, 1000} and producer.sent.total() == 500_500
    producer.sent.clear()
    producer.send(25_000)
    assert producer.sent == {0: 10_000, 1: 10_000, 2: 5_000}


def test_empty_warm_up_sends_nothing() -> None:
    producer = RecordingProducer(8)
    producer.warm_up(0)
    assert not producer.sent

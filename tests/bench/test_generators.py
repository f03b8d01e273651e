"""What the generators send, as far as that needs no broker."""

from collections import Counter

from bench.load.produce import Producer


class Noted(Producer):
    """Without a client: it notes who would have been sent how many messages."""

    def __init__(self, partitions: int) -> None:
        self.failed, self.partitions, self.turn, self.count = [], partitions, 0, 10_000
        self.sent: Counter[int] = Counter()
        self.kafka = self  # type: ignore[assignment]

    def _enqueue(self, partition: int, wanted: int) -> None:
        self.sent[partition] += wanted

    def flush(self, _timeout_ms: int) -> None: ...


def test_a_warm_up_writes_to_every_partition_and_the_load_array_by_array() -> None:
    producer = Noted(1000)
    producer.warm_up(500_500)
    assert set(producer.sent.values()) == {500, 1000} and producer.sent.total() == 500_500
    producer.sent.clear()
    producer.send(25_000)
    assert producer.sent == {0: 10_000, 1: 10_000, 2: 5_000}


def test_a_warm_up_of_nothing_sends_nothing() -> None:
    producer = Noted(8)
    producer.warm_up(0)
    assert not producer.sent

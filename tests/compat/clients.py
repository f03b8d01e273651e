"""One face for the real clients: write rows, read them back by assignment. Each client has a file
of its own.

A client says what it cannot do, so that a test may leave that out and say so.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compat.sample_records import CODECS, START_MS, Got, Row, expected

DEADLINE_S = 120.0
RECENT_MS = START_MS + 10**9  # a clock that is right shows more
LARGE = 12_000_000  # above the largest message of the tests, for the limits of the clients


class Refused(Exception):
    """The broker refused a record; ``code`` is Kafka's number."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Client(ABC):
    """``produce`` returns (partition, offset) of every row, in their order, or raises Refused."""

    name: str
    codecs: Sequence[str] = CODECS
    sends_timestamps = True
    tells_offsets = True
    quick = True  # many rows cost little

    @abstractmethod
    def produce(
        self,
        bootstrap: str,
        topic: str,
        rows: Sequence[Row],
        *,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
        linger_ms: int = 5,
    ) -> list[tuple[int, int]]: ...

    @abstractmethod
    def consume(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Got]:
        """From the beginning of each partition until it gave so many; in the order of partitions
        and offsets.
        """

    def can_send(self, row: Row) -> bool:
        """Whether this client has a way to send such a row."""
        return True

    def sendable(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self.can_send(row)]

    def check(self, got: Sequence[Got], rows: Sequence[Row], writer: Client | None = None) -> None:
        """That this client read exactly the rows that ``writer`` (itself, if not given) sent."""
        wanted = self.as_seen(expected(rows))
        if not (writer or self).sends_timestamps:
            assert all(one.timestamp > RECENT_MS for one in got)
            got = [replace(one, timestamp=START_MS) for one in got]
            wanted = [replace(one, timestamp=START_MS) for one in wanted]
        assert list(got) == wanted

    def code_seen(self, code: int) -> int:
        """What this client makes of an error of the broker."""
        return code

    def as_seen(self, got: Sequence[Got]) -> list[Got]:
        """Records as this client shows them, where it cannot show everything."""
        return list(got)

    def __repr__(self) -> str:
        return self.name


def collect(
    poll: Callable[[], Sequence[Got]], counts: Mapping[int, int], deadline_s: float = DEADLINE_S
) -> list[Got]:
    """Polls until every partition has given its count; more than that is an error."""
    left = {partition: count for partition, count in counts.items() if count}
    found: list[Got] = []
    deadline = time.monotonic() + deadline_s
    while left:
        assert time.monotonic() < deadline, f"still missing {dict(list(left.items())[:10])}"
        for got in poll():
            found.append(got)
            left[got.partition] -= 1
            if not left[got.partition]:
                del left[got.partition]
    return sorted(found, key=lambda got: (got.partition, got.offset))

"""Valid requests of every API and version, and what is done to their bytes.

Names and ids come from small pools, so that many requests meet something that exists, and the state
that legal requests make stays bounded. Settings that would stop the broker or change its limits are
not in the pool: a broker that obeys is not broken.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from millstream.wire.apis import Api
from millstream.wire.records.batch import build_batch
from millstream.wire.records.layout import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD, MAGIC, MAGIC_AT
from millstream.wire.records.payload import Record
from support.batches import reseal
from support.raw import SIZE, request_frame
from support.samples import VERSIONS, request_like

TOPICS = [f"fuzz-{number}" for number in range(8)]
GROUPS = [f"fuzz-group-{number}" for number in range(8)]
MEMBERS = ["", *(f"fuzz-member-{number}" for number in range(4))]
SETTINGS = [
    "retention.ms",
    "cleanup.policy",
    "segment.bytes",
    "max.message.bytes",
    "no.such.setting",
]
VALUES = ["1000", "compact", "delete", "-1", "1048576", "", "x" * 300]
# They fit every integer kind: larger ones come from mutations.
NUMBERS = [0, 1, 2, 3, 7, -1, -2, 100, 2**15 - 1, -(2**15)]
LARGE = [0, 1, 5, -1, -2, 1000, 2**40, 2**63 - 1, -(2**63)]
LENGTHS = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\x7f",
]
LONGEST_FRAME = 1 << 20
_HEAD = struct.Struct(">hh")


class Frames:
    """An endless supply of frames, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._known = self._pools()
        self._before = b""

    def next(self) -> bytes:
        """Return a frame with its size prefix: half of them as they should be, the others mutated.

        A mutated frame often ends its connection, and nothing behind it is looked at.
        """
        frame = self.valid()
        if self.dice.random() < 0.5:
            return frame
        body = bytearray(frame[4:])
        for _ in range(self.dice.choice((1, 1, 1, 2, 4))):
            self._mutate(body)
        self._before = frame[4:]
        size = len(body)
        if self.dice.random() < 0.02:
            size += self.dice.choice((-3, -1, 1, 5, 1 << 20))
        return SIZE.pack(max(size, 0)) + bytes(body[:LONGEST_FRAME])

    def valid(self) -> bytes:
        api, version = self.dice.choice(VERSIONS)
        return self.frame_of(api, version)

    def frame_of(self, api: Api, version: int) -> bytes:
        message = request_like(api.request_class(), version, self._known, self.dice.randrange(50))
        return request_frame(
            api, version, message, self.dice.randrange(1 << 31), self.dice.choice(MEMBERS)
        )

    def records(self) -> bytes:
        """Return a batch of any codec, mutated half of the time.

        Half of the mutated ones get the length and the checksum that belong to their bytes: the
        checks behind those see them.
        """
        count = self.dice.choice((1, 1, 2, 10))
        rows = [
            Record(number, 0, b"key", b"value" * self.dice.randrange(20), ())
            for number in range(count)
        ]
        batch = bytearray(
            build_batch(rows, base_offset=0, codec=self.dice.choice((0, 0, 0, 1, 2, 3, 4)))
        )
        if self.dice.random() < 0.5:
            self._mutate(batch)
            if len(batch) >= HEADER_SIZE and self.dice.random() < 0.5:
                struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LOG_OVERHEAD)
                batch[MAGIC_AT] = MAGIC
                reseal(batch)
        return bytes(batch)

    # ---- bytes ----

    def _mutate(self, body: bytearray) -> None:
        self.dice.choice(self._mutations)(body)

    @property
    def _mutations(self) -> tuple[Callable[[bytearray], None], ...]:
        return (
            self._flip,
            self._flip,
            self._truncate,
            self._insert,
            self._repeat,
            self._length,
            self._length,
            self._version,
            self._splice,
        )

    def _at(self, body: bytearray) -> int:
        return self.dice.randrange(len(body)) if body else 0

    def _flip(self, body: bytearray) -> None:
        if body:
            body[self._at(body)] ^= 1 << self.dice.randrange(8)

    def _truncate(self, body: bytearray) -> None:
        del body[self._at(body) :]

    def _insert(self, body: bytearray) -> None:
        at = self._at(body)
        body[at:at] = self.dice.randbytes(self.dice.choice((1, 4, 64)))

    def _repeat(self, body: bytearray) -> None:
        first, last = sorted((self._at(body), self._at(body)))
        body[last:last] = body[first:last] * self.dice.choice((1, 3, 20))

    def _length(self, body: bytearray) -> None:
        at = self._at(body)
        body[at : at + 4] = self.dice.choice(LENGTHS)

    def _version(self, body: bytearray) -> None:
        if len(body) >= _HEAD.size:
            key = struct.unpack_from(">h", body)[0]
            _HEAD.pack_into(body, 0, key, self.dice.choice((0, 1, 2, 5, 9, 12, 20, -1, 2**15 - 1)))

    def _splice(self, body: bytearray) -> None:
        if self._before:
            body[self._at(body) :] = self._before[self.dice.randrange(len(self._before)) :]

    # ---- values ----

    def _pools(self) -> dict[str, object]:
        """Return what fields are filled with, by their names."""

        def one_of(values: list[object] | list[str] | list[int]) -> Callable[[], object]:
            return lambda: self.dice.choice(values)

        topics, groups, numbers, large = map(one_of, (TOPICS, GROUPS, NUMBERS, LARGE))
        partitions = one_of([0, 0, 1, 2, 50, -1])
        short = one_of([0, 1, 10])
        known: dict[str, object] = {
            "timeout_ms": short,
            "max_wait_ms": short,
            "rebalance_timeout_ms": one_of([10, 100, -1]),
            "session_timeout_ms": one_of([6000, 10_000, -1, 0]),
            "transaction_timeout_ms": one_of([1, 1000, -1, 2**31 - 1]),
            "records": self.records,
            "num_partitions": one_of([1, 2, 3, -1, 0, 20_000]),
            "count": one_of([1, 2, 3, 4, -1, 20_000]),
            "replication_factor": one_of([1, -1, 3, 0]),
            "acks": one_of([0, 1, -1, 2]),
            "resource_type": one_of([2, 2, 8, 16, 32, 99]),
            "resource_name": one_of([*TOPICS, *GROUPS, ""]),
            "config_operation": one_of([0, 1, 2, 3, 9]),
        }
        known |= dict.fromkeys(("topic", "topic_name", "topics.name"), topics)
        known |= dict.fromkeys(
            ("group_id", "transactional_id", "key", "group", "v3_and_below_group_id"), groups
        )
        known |= dict.fromkeys(("member_id", "group_instance_id", "instance_id"), one_of(MEMBERS))
        known |= dict.fromkeys(("partition_index", "partition", "index"), partitions)
        known |= dict.fromkeys(
            ("producer_id", "base_offset", "fetch_offset", "offset", "timestamp"), large
        )
        known |= dict.fromkeys(
            ("producer_epoch", "leader_epoch", "generation_id", "replica_id"), numbers
        )
        known |= {
            f"{cls}.name": topics
            for cls in (
                "TopicProduceData",
                "ListOffsetsTopic",
                "MetadataRequestTopic",
                "OffsetCommitRequestTopic",
                "CreatableTopic",
                "DeleteTopicState",
                "DeleteRecordsTopic",
                "CreatePartitionsTopic",
            )
        }
        known |= {
            f"{cls}.name": one_of(SETTINGS) for cls in ("CreatableTopicConfig", "AlterableConfig")
        }
        known |= {
            f"{cls}.value": one_of(VALUES) for cls in ("CreatableTopicConfig", "AlterableConfig")
        }
        return known

"""Malformed frames, most of them made from valid requests by damaging them in the ways that break
decoders.

Everything random comes from the one ``random.Random`` that is passed in.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millstream.wire.apis import BY_KEY, Api
from millstream.wire.frames import parse_request_header
from millstream.wire.messages.create_partitions import CreatePartitionsRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.records.layout import ATTRIBUTES_AT, COUNT_AT, CRC_AT, HEADER_SIZE
from millstream.wire.records.legacy import build_message_set
from millstream.wire.schema import DecodeError, Struct
from support.batches import reseal
from support.raw import framed, request_frame
from support.samples import VERSIONS, request_like

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
_HEADER = struct.Struct(">hhih")
_LIES = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff",
    b"\xff\xff",
    b"\x80\x00",
    b"\x00\x00\x00\x00",
    b"\x00",
    b"\xff",
    b"\x00\x0f\xff\xff",
)


@dataclass(frozen=True, slots=True)
class World:
    """What exists in the broker under attack, and may be damaged."""

    topics: tuple[tuple[str, bytes], ...]
    altered: str  # the topic whose settings may change; the others keep theirs
    log_dir: str


class Requests:
    """Valid requests of every API and version, about what exists in the world."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self._world = world
        self._dice = dice
        self._now_ms = int(time.time() * 1000)

    def frame(self, api: Api, version: int) -> bytes:
        """A third of them hold made-up names, which stop the handler early but not the decoder."""
        known = (
            self._known(version)
            if self._dice.random() < 0.67
            else {"max_wait_ms": 0, "validate_only": True}
        )
        message = request_like(api.request_class(), version, known, self._dice.randrange(40))
        return request_frame(api, version, message, self._dice.randrange(1, 1 << 30))

    def _known(self, version: int) -> dict[str, object]:
        dice = self._dice
        name, topic_id = dice.choice(self._world.topics)
        config = dice.choice(
            [("retention.ms", "1000000"), ("segment.bytes", "x"), ("flush.ms", "-1")]
        )
        return {
            "name": name,
            "topic": name,
            "topic_id": topic_id if version >= 13 or dice.random() < 0.5 else bytes(16),
            "topic_name": name,
            "topic_names": [name + "-absent"],
            "DeleteTopicState.name": name + "-absent",
            "QuotaOperation.value": dice.random(),
            "DeleteTopicState.topic_id": dice.choice([bytes(16), dice.randbytes(16)]),
            "CreatableTopic.name": f"made-{dice.randrange(20)}",
            "num_partitions": dice.choice([-1, 1, 2, 0, -5]),
            "replication_factor": -1,
            "assignments": [],
            "count": dice.choice([1, 2, 3]),
            "validate_only": dice.random() < 0.7,
            "partition": 0,
            "partition_index": 0,
            "index": 0,
            "offset": dice.choice([0, 1, -1, 10**12]),
            "fetch_offset": dice.choice([0, 1, 5, 10**9]),
            "timestamp": dice.choice([-1, -2, -3, -4, -9, 0, self._now_ms]),
            "max_wait_ms": 0,
            "min_bytes": dice.choice([0, 1, 1 << 30]),
            "max_bytes": 1 << 20,
            "partition_max_bytes": 1 << 20,
            "replica_id": -1,
            "isolation_level": dice.choice([0, 1, 1, 7]),
            "session_id": 0,
            "session_epoch": dice.choice([0, -1, -1, 3]),
            "current_leader_epoch": dice.choice([-1, 0, 5]),
            "last_fetched_epoch": dice.choice([-1, 0, 9]),
            "transactional_id": None,
            "acks": dice.choice([1, 1, -1, 0]),
            "records": lambda: self.records(version),
            "resource_type": dice.choice([2, 4, 8, 16, 32]),
            "resource_name": dice.choice([self._world.altered, "0", "", "7"]),
            "AlterableConfig.name": config[0],
            "CreatableTopicConfig.name": config[0],
            "value": config[1],
            "path": self._world.log_dir,
            **self._known_to_coordinators(name),
        }

    def _known_to_coordinators(self, topic: str) -> dict[str, object]:
        """Groups and transactions, few enough that requests meet each other."""
        dice = self._dice
        group, member = f"group-{dice.randrange(4)}", dice.choice(["", "", "member-1", "member-2"])
        transaction = f"transaction-{dice.randrange(3)}"
        return {
            "group_id": group,
            "groups_names": [group],
            "group_ids": [group],
            "member_id": member,
            "group_instance_id": dice.choice([None, None, "instance"]),
            "instance_id": dice.choice([None, "instance"]),
            "generation_id": dice.choice([-1, 0, 1, 2]),
            "generation_id_or_member_epoch": dice.choice([-1, -1, 0, 1]),
            "member_epoch": dice.choice([0, 0, 1, -1, -2]),
            "session_timeout_ms": dice.choice([6_000, 10_000, 1]),
            "rebalance_timeout_ms": dice.choice([10, 1_000, -1]),
            "protocol_type": "consumer",
            "protocol_name": "range",
            "JoinGroupRequestProtocol.name": dice.choice(["range", "cooperative-sticky"]),
            "metadata": b"\x00\x01\x00\x00\x00\x01\x00\x05plain\xff\xff\xff\xff\x00\x00\x00\x00",
            "subscribed_topic_names": dice.choice([[topic], [], None]),
            "subscribed_topic_regex": dice.choice([None, None, "pl.*", "(a+)+$", "["]),
            "server_assignor": dice.choice([None, "uniform", "range", "other"]),
            "rack_id": "",
            "partition_indexes": [0, 1],
            "committed_offset": dice.choice([0, 5, -1]),
            "AddPartitionsToTxnTransaction.transactional_id": transaction,
            "v3_and_below_transactional_id": transaction,
            "AddOffsetsToTxnRequest.transactional_id": transaction,
            "EndTxnRequest.transactional_id": transaction,
            "TxnOffsetCommitRequest.transactional_id": transaction,
            "InitProducerIdRequest.transactional_id": dice.choice([None, transaction]),
            "transactional_ids": [transaction],
            "transaction_timeout_ms": dice.choice([1_000, 60_000, 0, -1]),
            "producer_id": dice.choice([-1, 0, 1, 2]),
            "v3_and_below_producer_id": dice.choice([0, 1, 2]),
            "producer_epoch": dice.choice([-1, 0, 1]),
            "v3_and_below_producer_epoch": dice.choice([0, 1]),
            "states_filter": ["Stable"],
            "types_filter": [],
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
            "transaction_version": dice.choice([0, 1, 2]),
            "coordinator_epoch": dice.choice([0, 1, -1]),
        }

    def records(self, version: int) -> bytes:
        dice = self._dice
        rows = [
            Record(
                n, self._now_ms, b"k%d" % n, bytes(dice.randrange(200)), (("h", b"v"), ("n", None))
            )
            for n in range(dice.randrange(1, 6))
        ]
        if version < 3:
            magic = dice.choice([0, 1]) if version == 2 else 0
            return build_message_set(rows, magic, codec=dice.choice([0, 1, 2, 3]))
        if dice.random() < 0.3:
            return build_batch(
                rows,
                codec=dice.randrange(5),
                producer_id=dice.randrange(5000),
                producer_epoch=0,
                base_sequence=0,
            )
        return build_batch(rows, codec=dice.randrange(5))


# ---- damage ----

Damage = Callable[[bytes, random.Random], bytes]


def cut(body: bytes, dice: random.Random) -> bytes:
    """The end is missing, and the size says so: the decoder runs out of bytes."""
    return body[: dice.randrange(8, max(len(body), 9))]


def lengthen(body: bytes, dice: random.Random) -> bytes:
    return body + dice.randbytes(dice.choice([1, 7, 300, 70_000]))


def flip(body: bytes, dice: random.Random) -> bytes:
    """Some bits of the body; the header stays, so that the frame reaches its decoder."""
    out = bytearray(body)
    for _ in range(dice.choice([1, 1, 2, 4, 16])):
        at = _behind_header(body, dice)
        out[at] ^= 1 << dice.randrange(8)
    return bytes(out)


def lie(body: bytes, dice: random.Random) -> bytes:
    """A length or count that is not true, over whatever stood there."""
    out = bytearray(body)
    what = dice.choice(_LIES)
    at = _behind_header(body, dice)
    out[at : at + len(what)] = what
    return bytes(out)


def insert(body: bytes, dice: random.Random) -> bytes:
    at = _behind_header(body, dice)
    return body[:at] + dice.randbytes(dice.randrange(1, 9)) + body[at:]


def remove(body: bytes, dice: random.Random) -> bytes:
    at = _behind_header(body, dice)
    return body[:at] + body[at + dice.randrange(1, 9) :]


def repeat(body: bytes, dice: random.Random) -> bytes:
    """A piece of the frame twice, so that lengths hold but counts do not."""
    at = _behind_header(body, dice)
    end = min(at + dice.randrange(1, 40), len(body))
    return body[:end] + body[at:end] + body[end:]


def other_version(body: bytes, dice: random.Random) -> bytes:
    """The same bytes, said to be of another version, served or not."""
    version = dice.choice([-1, 0, 1, 2, 3, 4, 5, 7, 9, 12, 13, 14, 18, 19, 99, 32767, -32768])
    return body[:2] + struct.pack(">h", version) + body[4:]


def other_api(body: bytes, dice: random.Random) -> bytes:
    key = dice.choice([*BY_KEY, *range(-2, 95), 32767, -32768])
    return struct.pack(">h", key) + body[2:]


def header(body: bytes, dice: random.Random) -> bytes:
    """The header itself: client id, its length, tagged fields."""
    out = bytearray(body)
    at = dice.randrange(min(20, len(body)))
    out[at] = dice.randrange(256)
    return bytes(out)


def noise(body: bytes, dice: random.Random) -> bytes:
    return body[:8] + dice.randbytes(dice.randrange(1, 400))


DAMAGES: tuple[Damage, ...] = (
    cut, cut, flip, flip, flip, lie, lie, lie, lengthen, insert, remove, repeat, other_version, other_api, header, noise,
)  # fmt: skip


def _behind_header(body: bytes, dice: random.Random) -> int:
    return dice.randrange(min(13, len(body) - 1), len(body))


def spoiled_batch(batch: bytes, dice: random.Random) -> bytes:
    """A v2 batch with a wrong field, sealed again with the right CRC, so that more than the CRC has
    to find it.
    """
    out = bytearray(batch)
    for _ in range(dice.choice([1, 1, 3])):
        at = dice.choice(
            [
                dice.randrange(ATTRIBUTES_AT, HEADER_SIZE),
                dice.randrange(ATTRIBUTES_AT, len(batch)),
                dice.randrange(COUNT_AT, HEADER_SIZE),
                dice.randrange(0, CRC_AT),
            ]
        )
        out[min(at, len(out) - 1)] ^= 1 << dice.randrange(8)
    if dice.random() < 0.3:
        out = out[: dice.randrange(ATTRIBUTES_AT, len(out))] + dice.randbytes(dice.randrange(20))
    if dice.random() < 0.8:
        reseal(out)
    return bytes(out)


# ---- the whole lot ----


def frames(world: World, dice: random.Random, count: int) -> Iterator[bytes]:
    """``count`` damaged requests, every API and version in turn."""
    requests = Requests(world, dice)
    made = 0
    while made < count:
        order = list(VERSIONS)
        dice.shuffle(order)
        for api, version in order[: count - made]:
            frame = _damaged(requests, api, version, dice)
            if not too_much(decoded(frame)):
                yield frame
                made += 1


def _damaged(requests: Requests, api: Api, version: int, dice: random.Random) -> bytes:
    if api.key == PRODUCE and dice.random() < 0.5:
        records = requests.records
        requests.records = lambda v: spoiled_batch(records(max(v, 3)), dice)  # type: ignore[method-assign]
        try:
            return requests.frame(api, version)
        finally:
            requests.records = records  # type: ignore[method-assign]
    body = requests.frame(api, version)[4:]
    for _ in range(dice.choice([1, 1, 1, 2])):
        body = dice.choice(DAMAGES)(body, dice)
        if len(body) < 9:
            break
    return framed(body)


def decoded(frame: bytes) -> Struct | None:
    """What the broker will read from a frame, damaged as it is; None where it cannot."""
    view = memoryview(frame)[4:]
    try:
        key, version, _, _, body = parse_request_header(view)
        if key in BY_KEY and BY_KEY[key].supports(version):
            return BY_KEY[key].request_class().decode(view, version, body)[0]
    except (DecodeError, KeyError):
        pass
    return None


def may_wait(request: Struct | None) -> bool:
    """Whether the broker may rightly keep this request for a while."""
    if isinstance(request, FetchRequest):
        return request.max_wait_ms > 0
    return isinstance(request, JoinGroupRequest | SyncGroupRequest)


def too_much(request: Struct | None) -> bool:
    """Whether damage made a request for so many partitions that serving it, as is right, would take
    too long here.
    """
    if isinstance(request, CreateTopicsRequest):
        return any(topic.num_partitions > 50 for topic in request.topics)
    return isinstance(request, CreatePartitionsRequest) and any(
        topic.count > 50 for topic in request.topics
    )

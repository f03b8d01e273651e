"""Ten thousand malformed frames against a real broker: an answer that decodes or a closed
connection, nothing else.

Most are damaged requests of every API and version, so that they reach the decoders and handlers.
Meanwhile a normal client is served, memory stays bounded, the log tells of no bug, and a topic with
known contents stays as it is. ``MILLSTREAM_FUZZ_SEED`` chooses another lot; a failure prints the
seed and the frame.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.core.errors import ErrorCode
from millstream.local.broker import LocalBroker
from millstream.wire.apis import APIS, BY_KEY
from millstream.wire.frames import API_VERSIONS_KEY
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.records.batch import (
    BatchHeader,
    Record,
    build_batch,
    parse_header,
    seal_batch,
)
from millstream.wire.records.compression import Codec, compress
from millstream.wire.records.legacy import build_message_set
from robust.mutations import World, decoded, frames, may_wait
from support.processes import children_of, complaints, memory_mib, wait_until
from support.raw import (
    SIZE,
    Closed,
    RawClient,
    create_topic,
    decode_answer,
    fetch_request,
    framed,
    produce,
    produce_request,
    request_frame,
)

SEED = int(os.environ.get("MILLSTREAM_FUZZ_SEED", "20"))
DAMAGED, GARBAGE, HALF, PIPELINED = 8_000, 600, 400, 1_000
HISTORY = [(b"key-%d" % n, b"value-%d" % n * (n % 50 + 1)) for n in range(500)]
CANARY_ID = 0x7FFFFFFF
CANARY = request_frame(BY_KEY[API_VERSIONS_KEY], 0, ApiVersionsRequest(), CANARY_ID)
# What the broker may grow by under all of this, beyond what it needs idle. One request may be
# decoded at a time.
GROWTH_MIB = 100
CHILD_MIB = 400


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path_factory.mktemp("victim"), {"log.cleaner.backoff.ms": 100})
    with broker.start():
        yield broker


@pytest.fixture(scope="module")
def world(victim: LocalBroker) -> World:
    """The topics that may be damaged: one for each way in which the broker treats records."""
    kinds: dict[str, dict[str, object]] = {
        "plain": {},
        "compacted": {"cleanup_policy": "compact"},
        "gzipped": {"compression_type": "gzip"},
        "unpacked": {"compression_type": "uncompressed", "message_timestamp_type": "LogAppendTime"},
        "deep": {"message_validation_deep": "true", "max_message_bytes": 10_000_000},
    }
    with RawClient(victim.bootstrap) as client:
        topics = tuple(
            (name, create_topic(client, name, 2, **config)) for name, config in kinds.items()
        )
        create_topic(client, "altered")
    return World(topics, "altered", str(victim.data_dir))


@pytest.fixture(scope="module")
def history(victim: LocalBroker) -> str:
    """A topic whose contents are known; nothing that is sent here names it."""
    producer = Producer({"bootstrap.servers": victim.bootstrap, "enable.idempotence": True})
    for key, value in HISTORY:
        producer.produce("intact-history", value, key)
    assert producer.flush(30) == 0
    return "intact-history"


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes, bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        rows: list[tuple[int, bytes, bytes]] = []
        while len(rows) < count:
            for message in consumer.consume(count - len(rows), 30):
                assert message.error() is None, message.error()
                rows.append((message.offset(), message.key(), message.value()))
        return rows
    finally:
        consumer.close()


class NormalClient:
    """Produces and reads back, one record at a time, for as long as the frames fly."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="normal client", daemon=True)
        self.rounds = 0
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            producer = Producer(
                {"bootstrap.servers": self._bootstrap, "acks": "all", "linger.ms": 0}
            )
            with RawClient(self._bootstrap) as client:
                create_topic(client, "normal")
            while not self._ended.is_set():
                producer.produce("normal", b"%d" % self.rounds, on_delivery=self._check)
                assert producer.flush(30) == 0, "a normal produce was not answered"
                self.rounds += 1
                time.sleep(0.02)
        except BaseException as error:
            self.failure = error

    def _check(self, error: object, message: object) -> None:
        assert error is None, error

    def __enter__(self) -> NormalClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert self.failure is None, self.failure
        assert self.rounds > 0


class Attacker:
    """Sends frames one by one and holds every answer against its declaration."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client: RawClient | None = None
        self.left_open: list[RawClient] = []
        self.answers: Counter[str] = Counter()  # by API
        self.closes = 0

    def attack(self, frame: bytes) -> None:
        """The frame, and behind it a request that is known to be answered: what comes before that
        is the answer.
        """
        self.client = self.client or RawClient(self.bootstrap)
        if may_wait(decoded(frame)):
            self.leave_open(frame)
            return
        try:
            self.client.write(frame + CANARY)
            while True:
                answer = self.client.read_frame()
                if SIZE.unpack_from(answer)[0] == CANARY_ID:
                    return
                self.answers[check_answer(frame, answer)] += 1
        except (Closed, ConnectionError):
            self.closes += 1
            self.client.close()
            self.client = None

    def leave_open(self, data: bytes) -> None:
        """Sent, and left as it is for a while."""
        client, self.client = self.client or RawClient(self.bootstrap), None
        with contextlib.suppress(ConnectionError):
            client.write(data)
        self.left_open.append(client)
        if len(self.left_open) > 200:
            self.left_open.pop(0).close()

    def close(self) -> None:
        for client in [*self.left_open, *([self.client] if self.client else [])]:
            client.close()
        self.left_open, self.client = [], None


def check_answer(frame: bytes, answer: bytes) -> str:
    """The name of the API whose answer it is."""
    key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
    api = BY_KEY[key]
    if key == API_VERSIONS_KEY and not api.supports(version):
        version = 0
    got, _message = decode_answer(api, version, answer)
    assert got == correlation_id
    return api.name


def garbage(dice: random.Random) -> Iterator[bytes]:
    """What is not a request at all."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(300)
    fixed = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /topics/a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        hello,
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x07" + bytes(7),
        b"\xff\xff\xff\xff" + bytes(100),
        b"\x80\x00\x00\x00",
        b"\x7f\xff\xff\xff" + bytes(1000),
        b"\x06\x40\x00\x01" + bytes(1000),  # one more than socket.request.max.bytes
        framed(b"\x7f\xff\x7f\xff\x7f\xff\x7f\xff\x7f\xff"),
        framed(
            b"\x27\x0f\x7f\xff\x00\x00\x00\x01\xff\xff"
        ),  # an unknown key in the highest version
    ]
    yield from fixed
    for _ in range(GARBAGE - len(fixed)):
        yield framed(dice.randbytes(dice.randrange(8, 600)))


def halves(world: World, dice: random.Random) -> Iterator[bytes]:
    """Frames that announce more than comes; sometimes much more."""
    for frame in frames(world, dice, HALF):
        if dice.random() < 0.5:
            yield frame[: dice.randrange(1, len(frame))]
        else:
            yield SIZE.pack(dice.randrange(len(frame), 100_000_000)) + frame[4:]


@functools.lru_cache
def bomb(codec: int, size: int) -> bytes:
    """A batch of a few kilobytes, at most a megabyte, that says little and unpacks to ``size``
    bytes.
    """
    body = _zeros(size) if codec == Codec.GZIP else compress(codec, bytes(size))
    head = parse_header(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
    return seal_batch(_with(head, length=49 + len(body), attributes=codec), body)


def _with(head: BatchHeader, **changes: int) -> BatchHeader:
    return head._replace(**changes)


def _zeros(size: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    parts = [packer.compress(piece) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


BOMBS = {
    Codec.GZIP: 200 << 20,
    Codec.SNAPPY: 20 << 20,
    Codec.LZ4: 200 << 20,
    Codec.ZSTD: 1 << 30,
}


@pytest.mark.timeout(300)
def test_malformed_frames_are_refused_and_the_broker_goes_on(
    victim: LocalBroker, world: World, history: str
) -> None:
    dice = random.Random(SEED)
    before = memory_mib(victim.pid)
    attacker = Attacker(victim.bootstrap)
    frame = b""
    try:
        with NormalClient(victim.bootstrap):
            for frame in frames(world, dice, DAMAGED):
                attacker.attack(frame)
            for frame in garbage(dice):
                attacker.attack(frame)
            for frame in halves(world, dice):
                attacker.leave_open(frame)
            for frame in pipelined(world, dice):
                send_and_leave(victim.bootstrap, frame)
    except BaseException:
        print(f"MILLSTREAM_FUZZ_SEED={SEED} frame {frame[:2000].hex()}")
        raise
    finally:
        attacker.close()
    assert complaints(victim.output()) == []
    # Both ways out were taken often enough to mean something, and every handler was reached.
    assert attacker.answers.total() > 1_500 and attacker.closes > 1_500
    assert {api.name for api in APIS} - set(attacker.answers) <= {
        "JoinGroup",
        "SyncGroup",
    }  # which wait
    assert memory_mib(victim.pid, "VmHWM") - before < GROWTH_MIB
    assert read_all(victim.bootstrap, history, len(HISTORY)) == [
        (n, *row) for n, row in enumerate(HISTORY)
    ]


def pipelined(world: World, dice: random.Random) -> Iterator[bytes]:
    """Many at once in one write, damaged ones among good ones."""
    per_write = 50
    for _ in range(PIPELINED // per_write):
        lot = list(frames(world, dice, per_write))
        yield b"".join(frame if dice.random() < 0.3 else CANARY for frame in lot) + b"".join(
            lot[:2]
        )


def send_and_leave(bootstrap: str, data: bytes) -> None:
    """Sends, takes a little of the answer, and goes without a word."""
    with RawClient(bootstrap) as client, contextlib.suppress(ConnectionError):
        client.write(data)
        client.socket.recv(100)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("topic", ["compacted", "gzipped", "unpacked", "deep"])
def test_a_decompression_bomb_is_refused_and_costs_bounded_memory(
    victim: LocalBroker, world: World, topic: str
) -> None:
    before = memory_mib(victim.pid)
    with RawClient(victim.bootstrap) as client, RawClient(victim.bootstrap) as other:
        for codec, size in BOMBS.items():
            if topic == "gzipped" and codec == Codec.GZIP:
                continue  # kept as it came, and so not unpacked here
            batch = bomb(codec, size)
            client.send(produce_request(topic, 0, batch), 9)
            # The bomb is defused in a child: others are answered meanwhile.
            assert (
                produce(other, "plain", 0, build_batch([Record(0, -1, None, b"v", ())])).error_code
                == 0
            )
            _, answer = client.receive()
            code = answer.responses[0].partition_responses[0].error_code
            assert code in REFUSALS, ErrorCode.of(code)
    for child in children_of(victim.pid):
        assert memory_mib(child, "VmHWM") < CHILD_MIB
    assert memory_mib(victim.pid, "VmHWM") - before < GROWTH_MIB
    assert complaints(victim.output()) == []


REFUSALS = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_bomb_in_the_old_format_is_refused(victim: LocalBroker, world: World, codec: int) -> None:
    rows = [Record(0, 1_700_000_000_000, b"k", bytes(80 << 20), ())]
    with RawClient(victim.bootstrap) as client:
        answer = produce(client, "deep", 0, build_message_set(rows, 1, codec=codec), version=2)
        assert answer.error_code in REFUSALS
    assert complaints(victim.output()) == []


def test_a_bomb_that_is_kept_harms_neither_old_readers_nor_compaction(
    victim: LocalBroker, world: World
) -> None:
    """A topic that keeps the producer's batches does not look inside; whoever has to later is
    bounded as well.
    """
    with RawClient(victim.bootstrap) as client:
        create_topic(client, "armed", segment_ms=1, min_cleanable_dirty_ratio=0.01)
        assert produce(client, "armed", 0, bomb(Codec.ZSTD, BOMBS[Codec.ZSTD])).error_code == 0
        assert (
            produce(
                client, "armed", 0, build_batch([Record(0, now_ms(), b"k", b"v", ())])
            ).error_code
            == 0
        )
        old = client.call(fetch_request("armed"), 2).responses[0].partitions[0]
        assert old.error_code != 0 and not old.records
        changed = client.call(set_topic_config("armed", "cleanup.policy", "compact"), 1).responses[
            0
        ]
        assert changed.error_code == 0
        wait_until(
            lambda: "armed-0" in victim.output(), "the cleaner to say that it cannot clean armed-0"
        )
        assert (
            produce(
                client, "armed", 0, build_batch([Record(0, now_ms(), b"k", b"v", ())])
            ).error_code
            == 0
        )
    assert all(memory_mib(child, "VmHWM") < CHILD_MIB for child in children_of(victim.pid))
    assert complaints(victim.output()) == []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def set_topic_config(topic: str, name: str, value: str) -> IncrementalAlterConfigsRequest:
    row = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[row])
    return IncrementalAlterConfigsRequest(resources=[resource])


def test_after_all_this_the_broker_stops_cleanly_and_comes_back_with_everything(
    victim: LocalBroker, history: str
) -> None:
    assert victim.stop() == 0
    victim.start()
    assert read_all(victim.bootstrap, history, len(HISTORY)) == [
        (n, *row) for n, row in enumerate(HISTORY)
    ]
    assert complaints(victim.log_file.read_text(errors="replace")) == []

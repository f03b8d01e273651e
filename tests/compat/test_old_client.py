"""An old client from PyPI, kafka-python 1.4: messages of magic 0 and 1, written and read, alone and
beside newer clients.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compat.client_confluent import Confluent
from compat.edge_case import AGAINST_KAFKA
from compat.sample_records import VARIOUS, WORDS, Row, expected, noise
from millstream.local.broker import LocalBroker

pytestmark = pytest.mark.skipif(AGAINST_KAFKA, reason="Apache Kafka 4 has dropped these versions")

OLD = "1.4.7"
PROGRAM = Path(__file__).with_name("old_client_program.py")
# What the client believes to talk to decides the versions it uses: magic 0 up to 0.9, magic 1 with
# 0.10.
MAGIC_0 = [(0, 8, 0), (0, 8, 2), (0, 9)]
MAGIC_1 = [(0, 10), (0, 10, 1)]
every_version = pytest.mark.parametrize(
    "api_version", [*MAGIC_0, *MAGIC_1], ids=lambda version: ".".join(map(str, version))
)
CODECS = (None, "gzip", "snappy", "lz4")
# Headers and records without key and value came later.
ROWS = [row for row in VARIOUS if not row.headers and (row.key, row.value) != (None, None)]


@pytest.fixture(scope="session")
def old_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the old library, installed once and kept with pytest's cache."""
    cache = getattr(request.config, "cache", None)
    parent = Path(cache.mkdir("old-clients")) if cache else tmp_path_factory.mktemp("old-clients")
    directory = parent / f"kafka-python-{OLD}-{sys.implementation.cache_tag}"
    if not directory.exists():
        scratch = tmp_path_factory.mktemp("install") / "library"
        _install(scratch)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.move(scratch, directory)
    return directory


def _install(directory: Path) -> None:
    wanted = [f"kafka-python=={OLD}", "six", "xxhash"]  # xxhash: for the LZ4 frames of magic 0
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    try:
        done = subprocess.run(
            [*pip, "--retries", "1", "--timeout", "15", "--target", str(directory), *wanted],
            capture_output=True,
            text=True,
            timeout=90,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"kafka-python {OLD} cannot be installed from PyPI: {error}")
    if done.returncode:
        reason = (done.stderr.strip() or "no reason told").splitlines()[-1]
        pytest.skip(f"kafka-python {OLD} cannot be installed from PyPI: {reason}")


class OldClient:
    """Runs the program with the old library."""

    def __init__(self, library: Path, bootstrap: str) -> None:
        self.library = library
        self.bootstrap = bootstrap

    def run(self, *steps: dict[str, Any]) -> list[Any]:
        orders = [{"bootstrap": self.bootstrap, **step} for step in steps]
        done = subprocess.run(
            [sys.executable, str(PROGRAM)],
            input=json.dumps(orders),
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | {"PYTHONPATH": str(self.library)},
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["version"] == OLD
        found: list[Any] = answer["answers"]
        return found


@pytest.fixture
def old_client(old_library: Path, shared_broker: LocalBroker) -> OldClient:
    return OldClient(old_library, shared_broker.bootstrap)


def write(
    topic: str, rows: Sequence[Row], version: tuple[int, ...], codec: str | None, acks: int | str
) -> dict[str, Any]:
    told = [
        {"key": b64(row.key), "value": b64(row.value), "timestamp": row.timestamp} for row in rows
    ]
    return {
        "do": "produce",
        "topic": topic,
        "rows": told,
        "api_version": version,
        "codec": codec,
        "acks": acks,
    }


def read(topic: str, count: int, version: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"do": "consume", "topic": topic, "count": count, "api_version": version, **more}


def b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def seen(rows: Sequence[Row], version: tuple[int, ...], *, stamped: bool) -> list[dict[str, Any]]:
    """What the old client must show: a timestamp only with magic 1, and -1 for
    what never had one.
    """
    return [
        {
            "offset": offset,
            "timestamp": None if version < (0, 10) else row.timestamp if stamped else -1,
            "key": b64(row.key),
            "value": b64(row.value),
        }
        for offset, row in enumerate(rows)
    ]


@every_version
def test_what_an_old_client_writes_is_read_by_old_and_new(
    old_client: OldClient, new_topic: Callable[..., str], api_version: tuple[int, ...]
):
    topics = {codec: new_topic() for codec in CODECS if codec != "lz4" or api_version >= (0, 8, 2)}
    rows = [row for row in ROWS if row.value is not None or api_version >= (0, 8, 1)]
    steps = []
    for codec, topic in topics.items():
        steps += [
            write(topic, rows, api_version, codec, "all"),
            read(topic, len(rows), api_version),
        ]
    answers = old_client.run(*steps)
    stamped = api_version >= (0, 10)
    wanted = expected(rows)
    for number, (codec, topic) in enumerate(topics.items()):
        acks, got = answers[2 * number : 2 * number + 2]
        assert acks == [[0, offset] for offset in range(len(rows))], codec
        assert got == seen(rows, api_version, stamped=stamped), codec
        newer = Confluent().consume(old_client.bootstrap, topic, {0: len(rows)})
        assert [(g.offset, g.key, g.value, g.headers) for g in newer] == [
            (w.offset, w.key, w.value, ()) for w in wanted
        ], codec
        if stamped:
            assert [g.timestamp for g in newer] == [w.timestamp for w in wanted], codec


@every_version
def test_what_a_new_client_writes_is_read_by_an_old_one(
    old_client: OldClient, new_topic: Callable[..., str], api_version: tuple[int, ...]
):
    rows = [row for row in VARIOUS if (row.key, row.value) != (None, None)]
    topics = {codec: new_topic() for codec in CODECS}
    for number, (codec, topic) in enumerate(topics.items()):
        Confluent().produce(
            old_client.bootstrap, topic, rows, codec=codec or "none", idempotent=number == 0
        )
    answers = old_client.run(*[read(topic, len(rows), api_version) for topic in topics.values()])
    for codec, got in zip(topics, answers, strict=True):
        assert got == seen(rows, api_version, stamped=True), codec


@pytest.mark.parametrize("api_version", [(0, 9), (0, 10)], ids=["0.9", "0.10"])
def test_large_messages_of_an_old_client(
    old_client: OldClient, new_topic: Callable[..., str], api_version: tuple[int, ...]
):
    topic = new_topic()
    rows = [Row(b"words", WORDS * 800), Row(b"noise", noise(900_000)), Row(b"small", b"x")]
    _acks, got = old_client.run(
        write(topic, rows, api_version, "gzip", 1),
        read(topic, len(rows), api_version, max_partition_fetch_bytes=4 << 20),
    )
    assert got == seen(rows, api_version, stamped=api_version >= (0, 10))


@pytest.mark.parametrize("api_version", [(0, 9), (0, 10)], ids=["0.9", "0.10"])
def test_the_broker_stamps_the_messages_of_an_old_client(
    old_client: OldClient, new_topic: Callable[..., str], api_version: tuple[int, ...]
):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    old_client.run(write(topic, ROWS[:5], api_version, "gzip", "all"))
    got = Confluent().consume(old_client.bootstrap, topic, {0: 5})
    assert [(g.log_append_time, g.value) for g in got] == [(True, row.value) for row in ROWS[:5]]
    assert all(g.timestamp > 1_750_000_000_000 for g in got)

"""kcat, the command line client of Debian: an older librdkafka, and no wheel from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.clients import DEADLINE_S, LARGE, Client, Refused
from compat.sample_records import CODECS, Got, Headers, Row

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
# kcat prints lengths before the bytes, so that no byte can be mistaken for the end of a record.
FORMAT = r"%p %o %T %K %S %h\x01%k%s\n"
CODES = {"Broker: Message size too large": 10, "Broker: Broker failed to validate record": 87}


class Kcat(Client):
    """One process for each row, for its key and headers are options of the command."""

    name = "kcat"
    codecs = CODECS
    sends_timestamps = False
    tells_offsets = False
    quick = False

    def can_send(self, row: Row) -> bool:
        """Keys and headers pass the command line; an empty value cannot be said, none only behind a
        key.
        """
        texts = [row.key or b"", *[value or b"" for _name, value in row.headers]]
        return (
            row.key != b""
            and row.value != b""
            and (row.key, row.value) != (None, None)
            and all(value for _name, value in row.headers)
            and not any(b"\0" in text or b"\xff" in text for text in texts)
        )

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
    ) -> list[tuple[int, int]]:
        options = [
            *("-z", codec),
            *("-X", f"acks={acks}"),
            *("-X", f"enable.idempotence={str(idempotent).lower()}"),
            *("-X", f"message.max.bytes={LARGE}"),
            *("-X", f"linger.ms={linger_ms}"),
        ]
        with tempfile.TemporaryDirectory() as scratch:
            for row in rows:
                headers = [
                    word for n, v in row.headers for word in ("-H", f"{n}={os.fsdecode(v or b'')}")
                ]
                target = [
                    "-P",
                    "-b",
                    bootstrap,
                    "-t",
                    topic,
                    "-p",
                    str(row.partition),
                    *options,
                    *headers,
                ]
                self._send(target, row, Path(scratch) / "value")
        return []

    def _send(self, target: list[str], row: Row, value: Path) -> None:
        """A value is a whole file; none at all can only be said on standard input, behind a key."""
        if row.value is None:
            _run(*target, "-Z", "-K", r"\x01", stdin=(row.key or b"") + b"\x01\n")
        else:
            value.write_bytes(row.value)
            _run(*target, *([] if row.key is None else ["-k", os.fsdecode(row.key)]), str(value))

    def consume(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Got]:
        whole = ["-p", str(next(iter(counts)))] if len(counts) == 1 else []
        output = _run(
            *("-C", "-b", bootstrap, "-t", topic, *whole),
            *("-o", "beginning", "-c", str(sum(counts.values())), "-e", "-q", "-f", FORMAT),
            *(
                "-X",
                f"fetch.message.max.bytes={LARGE}",
                "-X",
                "check.crcs=true",
                "-X",
                "fetch.wait.max.ms=50",
            ),
        )
        return sorted(_parse(output), key=lambda got: (got.partition, got.offset))

    def as_seen(self, got: Sequence[Got]) -> list[Got]:
        """kcat does not tell the kind of a timestamp, and prints headers as text, up to a zero
        byte.
        """
        return [
            Got(g.partition, g.offset, g.timestamp, False, g.key, g.value, _printed(g.headers))
            for g in got
        ]


def _run(*words: str, stdin: bytes = b"") -> bytes:
    assert KCAT is not None
    done = subprocess.run([KCAT, *words], capture_output=True, timeout=DEADLINE_S, input=stdin)
    if done.returncode:
        text = done.stderr.decode(errors="replace")
        raise Refused(next((code for words, code in CODES.items() if words in text), -1), text)
    return done.stdout


def _printed(headers: Headers) -> Headers:
    return _shown(
        b",".join(
            name.encode() + b"=" + (b"NULL" if v is None else v.split(b"\0")[0])
            for name, v in headers
        )
    )


def _parse(output: bytes) -> list[Got]:
    found, at = [], 0
    while at < len(output):
        partition, offset, timestamp, key_size, value_size = output[at : at + 200].split(b" ", 5)[
            :5
        ]
        at += len(b" ".join((partition, offset, timestamp, key_size, value_size))) + 1
        sizes = int(key_size), int(value_size)
        start = output.index(b"\1", at)
        text = output[at:start]
        key, at = _sized(output, start + 1, sizes[0])
        value, at = _sized(output, at, sizes[1])
        at += 1
        found.append(
            Got(int(partition), int(offset), int(timestamp), False, key, value, _shown(text))
        )
    return found


def _sized(output: bytes, at: int, size: int) -> tuple[bytes | None, int]:
    return (None, at) if size < 0 else (output[at : at + size], at + size)


def _shown(text: bytes) -> Headers:
    return (("text", text),) if text else ()

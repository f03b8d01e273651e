"""``millstream produce``: send lines of stdin or files, or output of ``consume --format json``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import (
    Bootstrap,
    ClientOptions,
    Timeout,
    TopicName,
    pair_list,
    pairs,
)
from millstream.cli.support.output import Progress, note
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.cli.support.record_json import JsonRecord
    from millstream.client.producer import Producer

app = declare.Application()

CHUNK_BYTES = 1 << 20
INTERRUPTED = 130
NEWLINE = r"\n"


class BadLine(ClientError):
    """An input line is not a record."""


class Codec(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Input(StrEnum):
    lines = "lines"
    json = "json"
    whole = "whole"


@app.command()
def produce(
    context: declare.Context,
    topic: TopicName,
    key_separator: Annotated[
        str | None,
        declare.Option(
            "--key-separator", "-K", metavar="TEXT", help="Separator of key and value in a line."
        ),
    ] = None,
    key: Annotated[
        str | None, declare.Option("--key", "-k", help="The key of every record.")
    ] = None,
    header: Annotated[
        list[str] | None,
        declare.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of every record (repeatable)."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        declare.Option("--partition", "-p", min=0, help="Target partition. [default: by key]"),
    ] = None,
    file: Annotated[
        list[Path] | None,
        declare.Option(
            "--file",
            exists=True,
            dir_okay=False,
            help="Read this file instead of stdin (repeatable).",
        ),
    ] = None,
    format: Annotated[
        Input,
        declare.Option(
            "--format",
            "-f",
            help="One record per line, one JSON record per line, or one per input.",
        ),
    ] = Input.lines,
    delimiter: Annotated[
        str, declare.Option("--delimiter", "-D", metavar="TEXT", help="End of a line.")
    ] = NEWLINE,
    null: Annotated[
        str | None,
        declare.Option(
            "--null", metavar="TEXT", help="Send keys and values equal to this text as null."
        ),
    ] = None,
    compression: Annotated[
        Codec, declare.Option("--compression", "-c", help="Compression of batches.")
    ] = Codec.none,
    acks: Annotated[
        str, declare.Option(help="Replicas that must acknowledge a record: all, 1 or 0.")
    ] = "all",
    quiet: Annotated[
        bool, declare.Option("--quiet", "-q", help="Print no summary and no progress.")
    ] = False,
    client_option: ClientOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send records to a topic, one per line, from stdin or files."""
    if acks not in ("all", "1", "0"):
        raise declare.BadParameter(f"{acks!r} is not all, 1 or 0", param_hint="--acks")
    _refuse_unused(format, {"--key-separator": key_separator, "--null": null}, delimiter)
    reading = _Reading(
        format,
        _escaped(delimiter, "--delimiter"),
        None if key_separator is None else _escaped(key_separator, "--key-separator"),
        None if key is None else key.encode(),
        None if null is None else null.encode(),
        tuple((name, value.encode()) for name, value in pair_list(header, "--header")),
        partition,
    )
    options = pairs(client_option, "--client-option")
    from millstream.client.producer import Producer

    producer = Producer(
        bootstrap,
        compression=compression.value,
        acks="all" if acks == "all" else int(acks),  # type: ignore[arg-type]
        timeout_s=timeout,
        delivery_timeout_ms=_delivery_timeout_ms(context, timeout),
        options=options,
    )
    with ExitStack() as stack:
        inputs: list[IO[bytes]] = [stack.enter_context(path.open("rb")) for path in file or ()]
        _send_all(producer, topic, reading, inputs or [sys.stdin.buffer], quiet)


def _refuse_unused(format: Input, line_options: dict[str, str | None], delimiter: str) -> None:
    """Refuse options that the format ignores, because other records than intended would be sent."""
    if format is Input.json:
        for option, text in line_options.items():
            if text is not None:
                raise declare.BadParameter(
                    "has no effect with --format json, where each line has its key and value",
                    param_hint=option,
                )
    if format is Input.whole and delimiter != NEWLINE:
        raise declare.BadParameter(
            "has no effect with --format whole, which sends each input as one record",
            param_hint="--delimiter",
        )


def _delivery_timeout_ms(context: declare.Context, timeout_s: float) -> int:
    """Return ``--timeout`` if it was given, as the limit for each record.

    Otherwise return the producer's own default, which is longer than the 30 s of a request.
    """
    from millstream.client.producer import DELIVERY_TIMEOUT_MS

    source = context.get_parameter_source("timeout")
    explicit = source is not None and source.name == "COMMANDLINE"
    return round(timeout_s * 1000) if explicit else DELIVERY_TIMEOUT_MS


def _send_all(
    producer: Producer, topic: str, reading: _Reading, inputs: list[IO[bytes]], quiet: bool
) -> None:
    """Send all input. After Ctrl-C flush the records read so far, then exit as interrupted."""
    interactive = inputs[0].isatty()
    if interactive and not quiet:
        note("enter one record per line; end with Ctrl-D")
    progress = Progress("producing", enabled=False if quiet or interactive else None)
    started_s, size, interrupted = time.monotonic(), 0, False
    try:
        for record in reading.records(inputs):
            producer.send(
                topic,
                record.value,
                key=record.key,
                headers=record.headers or None,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            size += len(record.key or b"") + len(record.value or b"")
            if interactive:
                producer.flush()
            elif not producer.sent % 1000:
                progress.update(producer.sent, size)
    except KeyboardInterrupt:
        interrupted = True
    except BadLine as error:
        progress.clear()
        producer.flush()
        before = f"{counted(producer.sent, 'earlier record was', 'earlier records were')} sent"
        raise ClientError(f"{error.message}; {before}", hint=error.hint) from None
    finally:
        progress.clear()
    producer.flush()
    if not quiet:
        elapsed_s = time.monotonic() - started_s
        note(f"sent {counted(producer.sent, 'record')} to {topic} in {elapsed_s:.2f} s")
    if interrupted:
        raise declare.Exit(INTERRUPTED)


class _Reading:
    """Turns input bytes into records."""

    def __init__(
        self,
        format: Input,
        delimiter: bytes,
        key_separator: bytes | None,
        key: bytes | None,
        null: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        partition: int | None,
    ) -> None:
        from millstream.cli.support.record_json import JsonRecord, from_json

        self._make, self._from_json = JsonRecord, from_json
        self.format, self.delimiter, self.key_separator = format, delimiter, key_separator
        self.key, self.null, self.headers, self.partition = key, null, headers, partition

    def records(self, inputs: Iterable[IO[bytes]]) -> Iterator[JsonRecord]:
        for source in inputs:
            if self.format is Input.whole:
                yield self._record(source.read())
            elif self.format is Input.json:
                yield from self._json_records(source)
            else:
                for line in split(source, self.delimiter):
                    yield self._record(line)

    def _json_records(self, source: IO[bytes]) -> Iterator[JsonRecord]:
        """Parse lines of JSON, skipping blank lines."""
        for number, line in enumerate(split(source, self.delimiter), 1):
            if not line.strip():
                continue
            try:
                yield self._json_record(line)
            except ClientError as error:
                name = getattr(source, "name", "")
                where = f"line {number}" + (
                    f" of {name}" if source is not sys.stdin.buffer and name else ""
                )
                raise BadLine(f"{where}: {error.message}", hint=error.hint) from None

    def _record(self, line: bytes) -> JsonRecord:
        key, value = self.key, line
        if self.key_separator is not None:
            before, separator, after = line.partition(self.key_separator)
            if separator:
                key, value = before, after
        return self._make(
            self._or_null(key), self._or_null(value), self.headers, self.partition, None
        )

    def _json_record(self, line: bytes) -> JsonRecord:
        """Parse a line. Its partition is not kept, because the target topic may have fewer."""
        record = self._from_json(line)
        return record._replace(
            key=self.key if self.key is not None else record.key,
            headers=record.headers + self.headers,
            partition=self.partition,
        )

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null else data


def split(source: IO[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Yield the pieces of a stream between delimiters.

    The last piece needs no delimiter, and is left out if it is empty.
    """
    if delimiter == b"\n":
        for line in source:
            yield line[:-1] if line.endswith(b"\n") else line
        return
    rest = b""
    while chunk := source.read(CHUNK_BYTES):
        *pieces, rest = (rest + chunk).split(delimiter)
        yield from pieces
    if rest:
        yield rest


def _escaped(text: str, option: str) -> bytes:
    """Return a separator as bytes, with the escapes \\n, \\t and \\xHH replaced."""
    try:
        data = (
            text.encode().decode("unicode_escape").encode("latin-1")
            if "\\" in text
            else text.encode()
        )
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise declare.BadParameter(
            f"{text!r} has an invalid escape sequence", param_hint=option
        ) from None
    if not data:
        raise declare.BadParameter("must not be empty", param_hint=option)
    return data

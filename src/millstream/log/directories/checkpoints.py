"""The small text files of a data directory.

Offset checkpoints, partition.metadata, meta.properties and the clean shutdown file, all in Kafka's
formats. An offset checkpoint is a version line (0), a count line and one entry per line. Readers
raise CorruptFile, which names the file and the line. The caller decides how to continue without the
file.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millstream.core.types import TopicPartition
from millstream.log.errors import CorruptFile
from millstream.ports.files import Files
from millstream.wire.records.checksum import crc32c

_SEAL: Final = "#crc32c"  # no topic can have this name
NO_TOPIC_ID = uuid.UUID(int=0)


def format_entries(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join((f"0\n{len(entries)}\n", *(f"{line}\n" for line in entries))).encode()


def parse_entries(data: bytes, columns: int, path: str) -> list[list[str]]:
    """Return the entries of a checkpoint, each split into its columns.

    The last columns must be numbers. Kafka creates the files empty and fills them later, so an
    empty file has no entries.
    """
    if not data:
        return []
    try:
        lines = data.decode().splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (UnicodeDecodeError, ValueError, IndexError):
        raise CorruptFile(path, "does not begin with a version line and a count line") from None
    if version != 0:
        raise CorruptFile(path, f"has version {version}, but only 0 is supported")
    entries = [line.split() for line in lines[2:] if line]
    if len(entries) != count:
        raise CorruptFile(path, f"has {len(entries)} entries, but its second line says {count}")
    for number, entry in enumerate(entries, 3):
        if len(entry) != columns or not all(_is_number(field) for field in entry[columns - 2 :]):
            raise CorruptFile(path, f"line {number} is malformed: {' '.join(entry)!r}")
    return entries


def format_sealed(lines: Iterable[str]) -> bytes:
    """Format entries of three columns, followed by one with the checksum of the others.

    Apache Kafka takes it for a partition of a topic that does not exist, and drops it when it
    writes.
    """
    entries = list(lines)
    return format_entries([*entries, f"{_SEAL} 0 {crc32c(_joined(entries))}"])


def parse_sealed(data: bytes, path: str) -> list[list[str]]:
    """Return the entries without the checksum. Kafka's files have none, and are trusted."""
    entries = parse_entries(data, 3, path)
    if entries and entries[-1][0] == _SEAL:
        sealed = int(entries.pop()[2])
        if sealed != crc32c(_joined(" ".join(entry) for entry in entries)):
            raise CorruptFile(path, "does not match its checksum")
    elif b"#" in data:
        raise CorruptFile(path, "does not end with its checksum")
    return entries


def _joined(lines: Iterable[str]) -> bytes:
    return "\n".join(lines).encode()


def _is_number(field: str) -> bool:
    return field.removeprefix("-").isdecimal()


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; empty if the file does not exist."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    entries = parse_sealed(data, path)
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in entries}


def is_sealed(files: Files, path: str) -> bool:
    """Return whether the checkpoint exists and was written with its checksum."""
    try:
        return _SEAL.encode() in files.read_bytes(path)
    except FileNotFoundError:
        return False


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return format_sealed(
        f"{topic} {number} {offset}" for (topic, number), offset in offsets.items()
    )


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    files.write_atomic(path, format_offsets(offsets))


def encode_uuid(value: uuid.UUID) -> str:
    """Encode an id as Kafka does: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> uuid.UUID:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not an id of 16 bytes")
    return uuid.UUID(bytes=raw)


def format_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def parse_partition_metadata(data: bytes, path: str) -> uuid.UUID:
    fields = _fields(data, ":", path)
    if fields.get("version") != "0":
        raise CorruptFile(path, f"has version {fields.get('version')!r}, but only 0 is supported")
    try:
        topic_id = decode_uuid(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise CorruptFile(path, f"has no valid topic_id ({error})") from None
    if topic_id == NO_TOPIC_ID:
        raise CorruptFile(path, "has the topic_id of no topic (all zero)")
    return topic_id


def _fields(data: bytes, separator: str, path: str) -> dict[str, str]:
    fields = {}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CorruptFile(path, "is not text") from None
    for line in text.splitlines():
        name, separated, value = line.partition(separator)
        if separated and not line.startswith("#"):
            fields[name.strip()] = value.strip()
    return fields


def read_meta_properties(files: Files, path: str) -> dict[str, str]:
    """Read version, cluster.id, node.id (broker.id in version 0) and directory.id.

    Empty if the file does not exist.
    """
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    fields = _fields(data, "=", path)
    if fields.get("version") not in ("0", "1"):
        raise CorruptFile(
            path, f"has version {fields.get('version')!r}, but only 0 and 1 are supported"
        )
    return fields


def write_meta_properties(files: Files, path: str, fields: Mapping[str, str]) -> None:
    lines = ["#", *(f"{name}={value}" for name, value in sorted(fields.items()))]
    files.write_atomic(path, ("\n".join(lines) + "\n").encode())


def write_clean_shutdown(files: Files, path: str, broker_epoch: int) -> None:
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    files.write_atomic(path, data.encode())


def read_clean_shutdown(files: Files, path: str) -> int | None:
    """Return the broker epoch of the last clean shutdown.

    -1 if the file exists but has none; None if it does not exist.
    """
    try:
        content: Any = json.loads(files.read_bytes(path))
        return int(content["brokerEpoch"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1

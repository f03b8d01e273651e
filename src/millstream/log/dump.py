"""What is in the files of a data directory, line by line, in the words of Kafka's DumpLogSegments.

Reads only; safe beside a running broker, whose active segment may end in a batch that is being written. Indexes are
also held against the log beside them, and what does not fit is said: such lines are of the class Fault.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from millstream.log import names, offset_index, producer_snapshot, time_index, transaction_index
from millstream.log.checkpoints import encode_uuid, parse_entries, parse_partition_metadata
from millstream.log.errors import CorruptFile
from millstream.log.offset_index import OffsetIndex
from millstream.log.producer_snapshot import CorruptSnapshot
from millstream.log.time_index import TimeIndex
from millstream.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    Record,
    crc_matches,
    parse_header,
    read_marker,
    read_records,
)

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_DECOMPRESSED: Final = 1 << 30
_TRANSIENT: Final = (names.DELETED, names.SWAP, names.CLEANED)
_FIRST_NAMES: Final = (names.PARTITION_METADATA, names.LEADER_EPOCHS)


class Fault(str):
    """A line that tells what is wrong with a file."""

    file: str = ""


def dump(path: str, *, deep: bool = False) -> Iterator[str]:
    """Describe a file, or every file of a partition's directory; `deep` shows the records too. Raises OSError."""
    if os.path.isdir(path):
        yield from _directory(path, deep)
        return
    yield f"Dumping {path}"
    for line in _described(path, deep):
        if isinstance(line, Fault):
            line.file = path
        yield line


def _directory(path: str, deep: bool) -> Iterator[str]:
    known = [name for name in os.listdir(path) if _describer(name) is not None]
    for name in sorted(known, key=lambda name: (name not in _FIRST_NAMES, name)):
        yield from dump(os.path.join(path, name), deep=deep)
    if not known:
        fault = Fault("no file of a log is in this directory")
        fault.file = path
        yield fault


def _described(path: str, deep: bool) -> Iterator[str]:
    describe = _describer(os.path.basename(path))
    if describe is None:
        yield Fault("not a file of a log that is known here")
        return
    try:
        yield from describe(path, deep)
    except (CorruptFile, CorruptSnapshot, ValueError) as error:
        yield Fault(f"corrupt: {str(error).removeprefix(f'{path}: ')}")


def _describer(name: str) -> Callable[[str, bool], Iterator[str]] | None:
    for suffix in _TRANSIENT:
        name = name.removesuffix(suffix)
    if name in _BY_NAME:
        return _BY_NAME[name]
    base, dot, kind = name.partition(".")
    return _BY_KIND.get(dot + kind) if base.isdecimal() else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _base(path: str) -> int:
    return names.offset_of(os.path.basename(path)) or 0


# -- batches and records


def _log(path: str, deep: bool) -> Iterator[str]:
    yield f"Log starting offset: {_base(path)}"
    position = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            head = os.pread(file.fileno(), HEADER_SIZE, position)
            try:
                header = parse_header(head)
            except CorruptBatch as error:
                yield Fault(
                    f"{size - position} invalid bytes at the end, from position {position}: {error.reason}"
                )
                return
            batch = os.pread(file.fileno(), header.size, position)
            if len(batch) < header.size:
                yield Fault(
                    f"{size - position} bytes of a batch of {header.size} at the end, from position {position}"
                )
                return
            valid = crc_matches(batch, 0, header)
            yield _batch_line(header, position, valid)
            if not valid:
                yield Fault(f"corrupt: the checksum of the batch at position {position} is wrong")
            if deep:
                yield from _record_lines(header, batch)
            position += header.size


def _batch_line(header: BatchHeader, position: int, valid: bool) -> str:
    horizon = (
        f"OptionalLong[{header.delete_horizon_ms}]" if header.has_delete_horizon else "OptionalLong.empty"
    )
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else f"unknown({header.codec})"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.count}"
        f" baseSequence: {header.base_sequence} lastSequence: {header.last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_bool(header.transactional)}"
        f" isControl: {_bool(header.control)} deleteHorizonMs: {horizon} position: {position}"
        f" {_time_name(header)}: {header.max_timestamp} size: {header.size} magic: {header.magic}"
        f" compresscodec: {codec} crc: {header.crc} isvalid: {_bool(valid)}"
    )


def _record_lines(header: BatchHeader, batch: bytes) -> Iterator[str]:
    try:
        records = read_records(batch, max_bytes=_MAX_DECOMPRESSED)
        marker = read_marker(batch) if header.control else None
    except CorruptBatch as error:
        yield Fault(f"| the records cannot be read: {error}")
        return
    for number, record in enumerate(records):
        sequence = header.base_sequence + number if header.base_sequence >= 0 else -1
        line = _record_line(record, _time_name(header), sequence)
        if marker is not None:
            kind = "COMMIT" if marker.commit else "ABORT"
            line += f" endTxnMarker: {kind} coordinatorEpoch: {marker.coordinator_epoch}"
        elif not header.control:
            line += _data(" key: ", record.key) + _data(" payload: ", record.value)
        yield line


def _record_line(record: Record, time_name: str, sequence: int) -> str:
    headers = ",".join(name for name, _ in record.headers)
    return (
        f"| offset: {record.offset} {time_name}: {record.timestamp}"
        f" keySize: {-1 if record.key is None else len(record.key)}"
        f" valueSize: {-1 if record.value is None else len(record.value)}"
        f" sequence: {sequence} headerKeys: [{headers}]"
    )


def _data(name: str, data: bytes | None) -> str:
    return "" if data is None else name + data.decode("utf-8", "backslashreplace")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _time_name(header: BatchHeader) -> str:
    return "LogAppendTime" if header.log_append_time else "CreateTime"


# -- indexes


def _offset_index(path: str, deep: bool) -> Iterator[str]:
    data = _read(path)
    index = OffsetIndex.parse(_used(data, offset_index.ENTRY_SIZE), _base(path))
    batches = _log_batches(path, names.OFFSET_INDEX)
    for relative, position in zip(index.offsets, index.positions, strict=True):
        yield f"offset: {index.base_offset + relative} position: {position}"
    yield from _torn(data, offset_index.ENTRY_SIZE)
    if not index.increases():
        yield Fault("corrupt: its entries do not increase")
    for relative, position in zip(index.offsets, index.positions, strict=True):
        header = batches.get(position) if batches is not None else None
        if batches is not None and (header is None or header.last_offset != index.base_offset + relative):
            found = f"a batch up to {header.last_offset}" if header else "no batch"
            yield Fault(
                f"mismatch: offset {index.base_offset + relative} at position {position}, where the log has {found}"
            )


def _time_index(path: str, deep: bool) -> Iterator[str]:
    data = _read(path)
    index = TimeIndex.parse(_used(data, time_index.ENTRY_SIZE), _base(path))
    entries = [index.entry(slot) for slot in range(len(index))]
    for timestamp, offset in entries:
        yield f"timestamp: {timestamp} offset: {offset}"
    yield from _torn(data, time_index.ENTRY_SIZE)
    if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise([(-1, index.base_offset), *entries])):
        yield Fault("corrupt: its entries do not increase")
    batches = _log_batches(path, names.TIME_INDEX)
    headers = list(batches.values()) if batches is not None else []
    ends = [header.last_offset for header in headers]
    for timestamp, offset in entries if batches is not None else ():
        # The batch that holds the offset, which need not be the batch's last.
        slot = bisect_left(ends, offset)
        found = headers[slot].max_timestamp if slot < len(ends) else None
        if found != timestamp:
            yield Fault(f"mismatch: timestamp {timestamp} at offset {offset}, where the log has {found}")


def _used(data: bytes, entry_size: int) -> bytes:
    """Without the zeros at the end: Apache Kafka sets space aside for an index, which a crash leaves there."""
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    # A single entry may well be of zeros.
    return data[:used] if len(data) > entry_size else data


def _torn(data: bytes, entry_size: int) -> Iterator[str]:
    if len(data) % entry_size:
        yield Fault(f"corrupt: {len(data)} bytes are no multiple of an entry's {entry_size}")


def _log_batches(path: str, kind: str) -> dict[int, BatchHeader] | None:
    """position -> header of every batch of the log beside an index; None where it is not there."""
    head, found, tail = path.rpartition(kind)
    log = head + names.LOG + tail
    if not found or not os.path.exists(log):
        return None
    batches: dict[int, BatchHeader] = {}
    position = 0
    with open(log, "rb") as file:
        while len(head_bytes := os.pread(file.fileno(), HEADER_SIZE, position)) == HEADER_SIZE:
            try:
                header = parse_header(head_bytes)
            except CorruptBatch:
                break
            batches[position] = header
            position += header.size
    return batches


def _transaction_index(path: str, deep: bool) -> Iterator[str]:
    data = _read(path)
    size = transaction_index.ENTRY_SIZE
    for start in range(0, len(data) - size + 1, size):  # one by one: what precedes a bad entry is shown
        (entry,) = transaction_index.parse(data[start : start + size])
        yield (
            f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
            f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
        )
        if not 0 <= entry.first_offset <= entry.last_offset:
            yield Fault("corrupt: a transaction ends before it begins")
    yield from _torn(data, size)


def _snapshot(path: str, deep: bool) -> Iterator[str]:
    for entry in producer_snapshot.decode(_read(path)):
        txn = f"[{entry.current_txn_first_offset}]" if entry.current_txn_first_offset >= 0 else ".empty"
        yield (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch}"
            f" coordinatorEpoch: {entry.coordinator_epoch}"
            f" currentTxnFirstOffset: OptionalLong{txn} lastTimestamp: {entry.timestamp}"
            + (
                f" firstSequence: {(entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF}"
                f" lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset}"
                f" offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
                if entry.last_offset >= 0
                else ""
            )
        )


# -- text files


def _epochs(path: str, deep: bool) -> Iterator[str]:
    for epoch, start in parse_entries(_read(path), 2, path):
        yield f"epoch: {epoch} startOffset: {start}"


def _offsets(path: str, deep: bool) -> Iterator[str]:
    for topic, partition, offset in parse_entries(_read(path), 3, path):
        yield f"topic: {topic} partition: {partition} offset: {offset}"


def _partition_metadata(path: str, deep: bool) -> Iterator[str]:
    topic_id = parse_partition_metadata(_read(path), path)
    yield f"version: 0 topic_id: {encode_uuid(topic_id)}"


def _text(path: str, deep: bool) -> Iterator[str]:
    data = _read(path)
    yield from data.decode("utf-8", "backslashreplace").splitlines()
    if not data.isascii():
        yield Fault("corrupt: not a text file")


_BY_KIND: Final[dict[str, Callable[[str, bool], Iterator[str]]]] = {
    names.LOG: _log,
    names.OFFSET_INDEX: _offset_index,
    names.TIME_INDEX: _time_index,
    names.TRANSACTION_INDEX: _transaction_index,
    names.SNAPSHOT: _snapshot,
}
_BY_NAME: Final[dict[str, Callable[[str, bool], Iterator[str]]]] = {
    names.LEADER_EPOCHS: _epochs,
    names.PARTITION_METADATA: _partition_metadata,
    names.RECOVERY_POINTS: _offsets,
    names.LOG_STARTS: _offsets,
    names.HIGH_WATERMARKS: _offsets,
    names.CLEANER_OFFSETS: _offsets,
    names.META_PROPERTIES: _text,
    names.CLEAN_SHUTDOWN: _text,
}

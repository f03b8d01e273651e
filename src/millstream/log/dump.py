"""Shows the contents of a data directory, line by line, like Kafka's DumpLogSegments.

Reads only. It is safe beside a running broker, whose active segment may end in a batch that is
being written. Indexes are also compared with the log beside them; lines about mismatches are of the
class Fault.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, Self

from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import (
    encode_uuid,
    parse_entries,
    parse_partition_metadata,
    parse_sealed,
)
from millstream.log.errors import CorruptFile
from millstream.log.producers import snapshot
from millstream.log.producers.snapshot import CorruptSnapshot
from millstream.log.segments import offset_index, time_index, transaction_index
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.time_index import TimeIndex
from millstream.wire.records.batch import (
    BatchHeader,
    CorruptBatch,
    Record,
    crc_matches,
    parse_header,
    read_marker,
    read_records,
)
from millstream.wire.records.layout import HEADER_SIZE

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_DECOMPRESSED: Final = 1 << 30
_TRANSIENT: Final = (file_names.DELETED, file_names.SWAP, file_names.CLEANED)
_FIRST_NAMES: Final = (file_names.PARTITION_METADATA, file_names.LEADER_EPOCHS)


class Line(str):
    """A line, and its contents by name for programs.

    ``type`` says what it is about. Lines without it are only for people.
    """

    file: str = ""
    fields: dict[str, Any] | None = None

    @classmethod
    def of(cls, text: str, type: str, /, **fields: Any) -> Self:
        line = cls(text)
        line.fields = {"type": type} | fields
        return line


class Fault(Line):
    """A line about a fault of a file."""

    @property
    def reason(self) -> str:
        return self.removeprefix("| ")


def dump(path: str, *, deep: bool = False) -> Iterator[Line]:
    """Describe a file, or all files below a directory. Raises OSError.

    `deep` shows the records too.
    """
    if os.path.isdir(path):
        yield from _directory(path, deep)
        return
    yield Line(f"Dumping {path}")
    for line in _described(path, deep):
        line.file = path
        yield line


def _directory(path: str, deep: bool) -> Iterator[Line]:
    """Describe a partition's directory, a data directory, or a directory of those."""
    empty = True
    for directory, below, files in os.walk(path, onerror=_raise):
        below.sort(key=_partition_order)
        known = [name for name in files if _describer(name) is not None]
        for name in sorted(known, key=lambda name: (name not in _FIRST_NAMES, name)):
            empty = False
            yield from dump(os.path.join(directory, name), deep=deep)
    if empty:
        fault = Fault("no log files in this directory or below it")
        fault.file = path
        yield fault


def _partition_order(directory: str) -> tuple[str, int]:
    """Order by partition number: partition 2 before partition 10."""
    topic, _dash, number = directory.rpartition("-")
    return (topic, int(number)) if number.isdecimal() else (directory, -1)


def _raise(error: OSError) -> None:
    raise error


def _described(path: str, deep: bool) -> Iterator[Line]:
    describe = _describer(os.path.basename(path))
    if describe is None:
        yield Fault("not a known file of a log")
        return
    try:
        yield from describe(path, deep)
    except (CorruptFile, CorruptSnapshot, ValueError) as error:
        yield Fault(f"corrupt: {str(error).removeprefix(f'{path}: ')}")


def _describer(name: str) -> Describer | None:
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
    return file_names.offset_of(os.path.basename(path)) or 0


# -- batches and records


def _log(path: str, deep: bool) -> Iterator[Line]:
    yield Line(f"Log starting offset: {_base(path)}")
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
                    f"{size - position} bytes of a batch of {header.size} at the end,"
                    f" from position {position}"
                )
                return
            valid = crc_matches(batch, 0, header)
            yield _batch(header, position, valid)
            if not valid:
                yield Fault(f"corrupt: the checksum of the batch at position {position} is wrong")
            if deep:
                yield from _record_lines(header, batch)
            position += header.size


def _batch(header: BatchHeader, position: int, valid: bool) -> Line:
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else f"unknown({header.codec})"
    return Line.of(
        _batch_line(header, position, valid, codec),
        "batch",
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        count=header.count,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        leader_epoch=header.leader_epoch,
        transactional=header.transactional,
        control=header.control,
        delete_horizon_ms=header.delete_horizon_ms if header.has_delete_horizon else None,
        position=position,
        timestamp=header.max_timestamp,
        timestamp_type=_time_name(header),
        size=header.size,
        magic=header.magic,
        compression=codec,
        crc=header.crc,
        valid=valid,
    )


def _batch_line(header: BatchHeader, position: int, valid: bool, codec: str) -> str:
    horizon = (
        f"OptionalLong[{header.delete_horizon_ms}]"
        if header.has_delete_horizon
        else "OptionalLong.empty"
    )
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.count}"
        f" baseSequence: {header.base_sequence} lastSequence: {header.last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_bool(header.transactional)}"
        f" isControl: {_bool(header.control)} deleteHorizonMs: {horizon} position: {position}"
        f" {_time_name(header)}: {header.max_timestamp} size: {header.size} magic: {header.magic}"
        f" compresscodec: {codec} crc: {header.crc} isvalid: {_bool(valid)}"
    )


def _record_lines(header: BatchHeader, batch: bytes) -> Iterator[Line]:
    try:
        records = read_records(batch, max_bytes=_MAX_DECOMPRESSED)
        marker = read_marker(batch) if header.control else None
    except CorruptBatch as error:
        yield Fault(f"| the records cannot be read: {error}")
        return
    for number, record in enumerate(records):
        sequence = header.base_sequence + number if header.base_sequence >= 0 else -1
        text = _record_line(record, _time_name(header), sequence)
        fields: dict[str, Any] = {"key": record.key, "value": record.value}
        if marker is not None:
            kind = "COMMIT" if marker.commit else "ABORT"
            text += f" endTxnMarker: {kind} coordinatorEpoch: {marker.coordinator_epoch}"
            fields |= {"marker": kind, "coordinator_epoch": marker.coordinator_epoch}
        elif not header.control:
            text += _data(" key: ", record.key) + _data(" payload: ", record.value)
        yield Line.of(
            text,
            "record",
            offset=record.offset,
            timestamp=record.timestamp,
            timestamp_type=_time_name(header),
            sequence=sequence,
            headers=[list(header_row) for header_row in record.headers],
            **fields,
        )


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


def _offset_index(path: str, deep: bool) -> Iterator[Line]:
    data = _read(path)
    index = OffsetIndex.parse(_used(data, offset_index.ENTRY_SIZE), _base(path))
    batches = _log_batches(path, file_names.OFFSET_INDEX)
    for relative, position in zip(index.offsets, index.positions, strict=True):
        offset = index.base_offset + relative
        yield Line.of(
            f"offset: {offset} position: {position}",
            "offset_index",
            offset=offset,
            position=position,
        )
    yield from _torn(data, offset_index.ENTRY_SIZE)
    if not index.increases():
        yield Fault("corrupt: its entries do not increase")
    for relative, position in zip(index.offsets, index.positions, strict=True):
        header = batches.get(position) if batches is not None else None
        if batches is not None and (
            header is None or header.last_offset != index.base_offset + relative
        ):
            actual = f"a batch up to {header.last_offset}" if header else "no batch"
            yield Fault(
                f"mismatch: offset {index.base_offset + relative} at position {position},"
                f" where the log has {actual}"
            )


def _time_index(path: str, deep: bool) -> Iterator[Line]:
    data = _read(path)
    index = TimeIndex.parse(_used(data, time_index.ENTRY_SIZE), _base(path))
    entries = [index.entry(slot) for slot in range(len(index))]
    for timestamp, offset in entries:
        yield Line.of(
            f"timestamp: {timestamp} offset: {offset}",
            "time_index",
            timestamp=timestamp,
            offset=offset,
        )
    yield from _torn(data, time_index.ENTRY_SIZE)
    if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise([(-1, index.base_offset), *entries])):
        yield Fault("corrupt: its entries do not increase")
    batches = _log_batches(path, file_names.TIME_INDEX)
    headers = list(batches.values()) if batches is not None else []
    ends = [header.last_offset for header in headers]
    for timestamp, offset in entries if batches is not None else ():
        # The batch that holds the offset, which need not be its last.
        slot = bisect_left(ends, offset)
        actual = headers[slot].max_timestamp if slot < len(ends) else None
        if actual != timestamp:
            yield Fault(
                f"mismatch: timestamp {timestamp} at offset {offset}, where the log has {actual}"
            )


def _used(data: bytes, entry_size: int) -> bytes:
    """Return the data without the zeros at the end.

    Apache Kafka preallocates an index, and a crash leaves the rest of it.
    """
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    # A single entry may be all zeros.
    return data[:used] if len(data) > entry_size else data


def _torn(data: bytes, entry_size: int) -> Iterator[Line]:
    if len(data) % entry_size:
        yield Fault(f"corrupt: {len(data)} bytes are not a multiple of the entry size {entry_size}")


def _log_batches(path: str, kind: str) -> dict[int, BatchHeader] | None:
    """Return position -> header of the log beside an index, or None if there is none."""
    head, separator, tail = path.rpartition(kind)
    log = head + file_names.LOG + tail
    if not separator or not os.path.exists(log):
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


def _transaction_index(path: str, deep: bool) -> Iterator[Line]:
    data = _read(path)
    size = transaction_index.ENTRY_SIZE
    # one by one, to show the entries before a bad one
    for start in range(0, len(data) - size + 1, size):
        (entry,) = transaction_index.parse(data[start : start + size])
        yield Line.of(
            f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
            f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}",
            "aborted_transaction",
            producer_id=entry.producer_id,
            first_offset=entry.first_offset,
            last_offset=entry.last_offset,
            last_stable_offset=entry.last_stable_offset,
        )
        if not 0 <= entry.first_offset <= entry.last_offset:
            yield Fault("corrupt: a transaction ends before it begins")
    yield from _torn(data, size)


def _snapshot(path: str, deep: bool) -> Iterator[Line]:
    for entry in snapshot.decode(_read(path)):
        txn = (
            f"[{entry.current_txn_first_offset}]"
            if entry.current_txn_first_offset >= 0
            else ".empty"
        )
        yield Line.of(
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch}"
            f" coordinatorEpoch: {entry.coordinator_epoch}"
            f" currentTxnFirstOffset: OptionalLong{txn} lastTimestamp: {entry.timestamp}"
            + (
                f" firstSequence: {(entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF}"
                f" lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset}"
                f" offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
                if entry.last_offset >= 0
                else ""
            ),
            "producer",
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=entry.current_txn_first_offset
            if entry.current_txn_first_offset >= 0
            else None,
            last_sequence=entry.last_sequence,
            last_offset=entry.last_offset,
            offset_delta=entry.offset_delta,
            timestamp=entry.timestamp,
        )


# -- text files


def _epochs(path: str, deep: bool) -> Iterator[Line]:
    for epoch, start in parse_entries(_read(path), 2, path):
        yield Line.of(
            f"epoch: {epoch} startOffset: {start}",
            "leader_epoch",
            epoch=int(epoch),
            start_offset=int(start),
        )


def _offsets(path: str, deep: bool) -> Iterator[Line]:
    for topic, partition, offset in parse_sealed(_read(path), path):
        yield Line.of(
            f"topic: {topic} partition: {partition} offset: {offset}",
            "checkpoint",
            topic=topic,
            partition=int(partition),
            offset=int(offset),
        )


def _partition_metadata(path: str, deep: bool) -> Iterator[Line]:
    topic_id = encode_uuid(parse_partition_metadata(_read(path), path))
    yield Line.of(f"version: 0 topic_id: {topic_id}", "partition_metadata", topic_id=topic_id)


def _text(path: str, deep: bool) -> Iterator[Line]:
    data = _read(path)
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        yield Line.of(line, "text", text=line)
    if not data.isascii():
        yield Fault("corrupt: not a text file")


Describer = Callable[[str, bool], Iterator[Line]]
_BY_KIND: Final[dict[str, Describer]] = {
    file_names.LOG: _log,
    file_names.OFFSET_INDEX: _offset_index,
    file_names.TIME_INDEX: _time_index,
    file_names.TRANSACTION_INDEX: _transaction_index,
    file_names.SNAPSHOT: _snapshot,
}
_BY_NAME: Final[dict[str, Describer]] = {
    file_names.LEADER_EPOCHS: _epochs,
    file_names.PARTITION_METADATA: _partition_metadata,
    file_names.RECOVERY_POINTS: _offsets,
    file_names.LOG_STARTS: _offsets,
    file_names.HIGH_WATERMARKS: _offsets,
    file_names.CLEANER_OFFSETS: _offsets,
    file_names.META_PROPERTIES: _text,
    file_names.CLEAN_SHUTDOWN: _text,
}

"""The partition of each record: the Java client's hash over whole Arrow columns, or an even spread.

``murmur2`` processes all keys at once, word by word, as long as they have more words. Every Kafka
client with the default partitioner chooses the same partition for a key, so old and new records of
a key stay together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)

# A numpy array.
Array = Any


def murmur2(keys: pa.BinaryArray) -> Array:
    """Return the hash of each key as an unsigned number. The hash of a null is meaningless."""
    sizes = pc.binary_length(keys).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    hashes = SEED ^ sizes.astype(np.uint32)
    if not len(keys) or not int(sizes.max()):
        return _finish(hashes)
    data, starts = _bytes_of(keys)
    _mix_words(hashes, data, starts, sizes)
    _mix_tails(hashes, data, starts, sizes)
    return _finish(hashes)


def partition_of(keys: pa.BinaryArray, count: int | Array) -> Array:
    """Return the partition of each key among ``count``, which may differ from row to row."""
    return ((murmur2(keys) & _POSITIVE) % np.asarray(count, np.uint32)).astype(np.int32)


def spread(rows: int, count: int | Array, start: int) -> Array:
    """Return partitions for rows without a key, in turn.

    ``start`` rotates from task to task and batch to batch.
    """
    return ((np.arange(rows, dtype=np.int64) + start) % np.asarray(count, np.int64)).astype(
        np.int32
    )


def _bytes_of(keys: pa.BinaryArray) -> tuple[Array, Array]:
    """Return the bytes of all keys and where each key starts.

    Padding lets a word be read anywhere.
    """
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys)].astype(
        np.int64
    )
    end = int(np.frombuffer(offsets, np.int32)[keys.offset + len(keys)])
    padded = np.zeros(end + 4, np.uint8)
    padded[:end] = np.frombuffer(data, np.uint8, end)
    return padded, starts


def _mix_words(hashes: Array, data: Array, starts: Array, sizes: Array) -> None:
    words = np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    counts = sizes >> 2
    # Every key has this number of words.
    whole = int(counts.min())
    for index in range(whole):
        _mix(hashes, slice(None), words[starts + 4 * index])
    rows = np.flatnonzero(counts > whole)
    index = whole
    while len(rows):
        _mix(hashes, rows, words[starts[rows] + 4 * index])
        index += 1
        rows = rows[counts[rows] > index]


def _mix(hashes: Array, rows: Any, words: Array) -> None:
    words = words * _M
    words ^= words >> np.uint32(24)
    words *= _M
    hashes[rows] = (hashes[rows] * _M) ^ words


def _mix_tails(hashes: Array, data: Array, starts: Array, sizes: Array) -> None:
    """Mix in the one to three bytes after the last whole word."""
    left = sizes & 3
    rows = np.flatnonzero(left)
    if not len(rows):
        return
    at = starts[rows] + (sizes[rows] & ~np.int64(3))
    tail = data[at].astype(np.uint32)
    tail ^= np.where(left[rows] > 1, data[at + 1].astype(np.uint32) << np.uint32(8), np.uint32(0))
    tail ^= np.where(left[rows] > 2, data[at + 2].astype(np.uint32) << np.uint32(16), np.uint32(0))
    hashes[rows] = (hashes[rows] ^ tail) * _M


def _finish(hashes: Array) -> Array:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes

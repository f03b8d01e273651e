"""Codecs: round trips, the frames of other writers, damage, and bombs that must not fill memory."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import aiokafka.codec
import cramjam
import kafka.codec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from lz4 import frame as lz4_frame

from millstream.wire.records import compression
from millstream.wire.records.compression import Codec, compress, decompress
from millstream.wire.records.corrupt import (
    CorruptBatch,
    DecompressedTooLarge,
    UnknownCodec,
    UnreadableCompression,
)

SQUEEZERS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20
TEXT = b"".join(b"line %d of something that repeats itself\n" % i for i in range(20_000))


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=3000),
    st.integers(1, 200),
    st.sampled_from(list(Codec)),
    st.sampled_from([0, 1, 2]),
)
def test_round_trip(piece: bytes, times: int, codec: Codec, magic: int) -> None:
    data = piece * times
    packed = compress(codec, data, magic=magic)
    assert decompress(codec, memoryview(packed), max_bytes=len(data), magic=magic) == data


@pytest.mark.parametrize("codec", SQUEEZERS)
def test_incompressible_data_of_several_chunks(codec: Codec) -> None:
    data = os.urandom(900_000)
    assert decompress(codec, compress(codec, data), max_bytes=LIMIT) == data


@pytest.mark.parametrize("codec", SQUEEZERS)
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert len(packed) < len(TEXT)
    assert decompress(codec, packed, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, packed, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", SQUEEZERS)
def test_aiokafka_reads_ours_and_we_read_its(codec: Codec) -> None:
    name = codec.name.lower()
    encode, decode = (
        getattr(aiokafka.codec, f"{name}_encode"),
        getattr(aiokafka.codec, f"{name}_decode"),
    )
    assert bytes(decode(compress(codec, TEXT))) == TEXT
    assert decompress(codec, bytes(encode(TEXT)), max_bytes=LIMIT) == TEXT


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_kafka_python_reads_ours_and_we_read_its(name: str) -> None:
    codec = Codec[name.upper()]
    encode, decode = getattr(kafka.codec, f"{name}_encode"), getattr(kafka.codec, f"{name}_decode")
    assert bytes(decode(compress(codec, TEXT))) == TEXT
    assert decompress(codec, bytes(encode(TEXT)), max_bytes=LIMIT) == TEXT


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_gzip_levels_of_kafka_are_accepted(level: int) -> None:
    assert gzip.decompress(compress(Codec.GZIP, TEXT, level)) == TEXT


@pytest.mark.parametrize("level", [1, 9, 17])
def test_lz4_levels_of_kafka_are_accepted(level: int) -> None:
    assert lz4_frame.decompress(compress(Codec.LZ4, TEXT, level)) == TEXT


@pytest.mark.parametrize("level", [-131072, 1, 22])
def test_zstd_levels_of_kafka_are_accepted(level: int) -> None:
    assert zstandard.decompress(compress(Codec.ZSTD, TEXT[:10_000], level)) == TEXT[:10_000]


def test_unknown_codec() -> None:
    for call in (lambda: compress(5, b""), lambda: decompress(7, b"", max_bytes=1)):
        with pytest.raises(UnknownCodec):
            call()


# ---------------------------------------------------------------- gzip


def test_gzip_works_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_zlib", lambda: zlib)
    packed = compress(Codec.GZIP, TEXT)
    assert gzip.decompress(packed) == TEXT == decompress(Codec.GZIP, packed, max_bytes=LIMIT)
    with pytest.raises(UnreadableCompression):
        decompress(Codec.GZIP, packed[:-1], max_bytes=LIMIT)


def test_gzip_members_are_one_stream_and_what_follows_is_ignored() -> None:
    packed = gzip.compress(b"one,") + gzip.compress(b"two") + b"trailing"
    assert decompress(Codec.GZIP, packed, max_bytes=LIMIT) == b"one,two"


def test_gzip_of_endless_members_is_refused() -> None:
    with pytest.raises(UnreadableCompression, match="members"):
        decompress(Codec.GZIP, gzip.compress(b"") * 5000, max_bytes=LIMIT)


# ---------------------------------------------------------------- snappy


def test_snappy_is_written_in_xerial_frames() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    first = struct.unpack_from(">i", packed, 16)[0]
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == TEXT[: 32 * 1024]


def test_raw_snappy_is_read() -> None:
    assert (
        decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), max_bytes=LIMIT) == TEXT
    )


def test_empty_snappy() -> None:
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b""), max_bytes=0) == b""
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"")), max_bytes=0) == b""


@pytest.mark.parametrize("size", [-1, 0, 7, 2**31 - 1])
def test_xerial_block_sizes_that_lie(size: int) -> None:
    block = bytes(cramjam.snappy.compress_raw(b"abc"))
    packed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, size) + block
    with pytest.raises(UnreadableCompression):
        decompress(Codec.SNAPPY, packed, max_bytes=LIMIT)


def test_snappy_that_claims_more_than_it_can_hold() -> None:
    claim = b"\x80\x80\x40"  # a preamble of 1 MiB before two bytes
    with pytest.raises(UnreadableCompression, match="claim"):
        decompress(Codec.SNAPPY, claim + b"ab", max_bytes=1 << 30)


# ---------------------------------------------------------------- lz4


def test_lz4_blocks_are_independent_since_java_refuses_linked_ones() -> None:
    flags, block = compress(Codec.LZ4, TEXT)[4:6]
    assert flags & 0x20, "block independence"
    assert not flags & 0x08, "no content size, as Kafka writes it"
    assert block >> 4 == 4, "blocks of 64 KiB"


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("block_size", [4, 7])
def test_lz4_frames_of_other_kinds_are_read(linked: bool, block_size: int) -> None:
    packed = lz4_frame.compress(
        TEXT,
        block_linked=linked,
        block_size=block_size,
        store_size=True,
        content_checksum=True,
        block_checksum=True,
    )
    assert decompress(Codec.LZ4, packed + b"behind the end mark", max_bytes=LIMIT) == TEXT


def test_lz4_of_magic_0_has_the_broken_header_checksum() -> None:
    right, broken = compress(Codec.LZ4, TEXT), compress(Codec.LZ4, TEXT, magic=0)
    assert right[:7].hex() == "04224d18604082"
    assert broken[:7].hex() == "04224d1860401a"
    assert right[7:] == broken[7:]


def test_lz4_header_checksum_is_ignored_in_magic_0_only() -> None:
    packed = bytearray(compress(Codec.LZ4, TEXT))
    packed[6] ^= 0xFF
    assert decompress(Codec.LZ4, packed, max_bytes=LIMIT, magic=0) == TEXT
    for magic in (1, 2):
        with pytest.raises(UnreadableCompression):
            decompress(Codec.LZ4, packed, max_bytes=LIMIT, magic=magic)


def test_lz4_header_checksum_is_that_of_the_library() -> None:
    packed = lz4_frame.compress(b"x" * 1000, store_size=True)
    assert compression._with_right_header_checksum(packed) == packed
    assert compression._xxh32_short(b"") == 0x02CC5D05
    assert compression._xxh32_short(b"abc") == 0x32D153FF


# ---------------------------------------------------------------- zstd


def zstd_stream(data: bytes, **parameters: int) -> bytes:
    """As streaming producers write it: no content size."""
    settings = zstandard.ZstdCompressionParameters(write_content_size=0, **parameters)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(data) + stream.flush()


def test_zstd_without_content_size_and_in_several_frames() -> None:
    packed = zstd_stream(TEXT) + zstandard.compress(b"more") + zstd_stream(b"!")
    assert decompress(Codec.ZSTD, packed, max_bytes=LIMIT) == TEXT + b"more!"


def test_zstd_frame_of_several_chunks_before_another_frame() -> None:
    """The compressed data is longer than one chunk of input, and expands to several chunks of
    output.
    """
    data = b"".join(b"%d," % (number * number) for number in range(200_000))
    packed = compress(Codec.ZSTD, data)
    assert 4 * 64 * 1024 < len(packed) < len(data)
    for frame in (packed, zstd_stream(data)):
        assert decompress(Codec.ZSTD, frame + frame, max_bytes=2 * len(data)) == data + data


def test_zstd_with_too_many_frames_is_unreadable() -> None:
    frame = compress(Codec.ZSTD, b"x")
    assert decompress(Codec.ZSTD, frame * 1024, max_bytes=LIMIT) == b"x" * 1024
    with pytest.raises(UnreadableCompression, match="more than 1024 frames"):
        decompress(Codec.ZSTD, frame * 1025, max_bytes=LIMIT)


def test_zstd_with_the_window_of_level_22() -> None:
    packed = zstd_stream(b"a few bytes", window_log=27, compression_level=1)
    assert zstandard.get_frame_parameters(packed).window_size == 128 << 20
    assert decompress(Codec.ZSTD, packed, max_bytes=100) == b"a few bytes"


def test_zstd_window_beyond_kafkas_is_refused() -> None:
    packed = zstd_stream(b"a few bytes", window_log=28, compression_level=1)
    with pytest.raises(UnreadableCompression):
        decompress(Codec.ZSTD, packed, max_bytes=1 << 30)


def test_zstd_cut_short_is_unreadable() -> None:
    with pytest.raises(UnreadableCompression):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT)[:-5], max_bytes=LIMIT)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("left", [0, 1, 3, 6, 7, 10, 100])
def test_cut_data_is_unreadable(codec: Codec, left: int) -> None:
    with pytest.raises(UnreadableCompression):
        decompress(codec, compress(codec, TEXT)[:left], max_bytes=LIMIT, magic=2)
    with pytest.raises(UnreadableCompression):
        decompress(codec, compress(codec, TEXT, magic=0)[:left], max_bytes=LIMIT, magic=0)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SQUEEZERS),
    st.sampled_from([0, 2]),
    st.binary(max_size=2000),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=5),
)
def test_damaged_frames_give_bytes_or_corrupt_batch(
    codec: Codec, magic: int, data: bytes, damage: list[tuple[int, int]]
) -> None:
    packed = bytearray(compress(codec, data * 3, magic=magic))
    for position, byte in damage:
        packed[position % len(packed)] = byte
    for candidate in (packed, data):
        try:
            assert len(decompress(codec, bytes(candidate), max_bytes=10_000, magic=magic)) <= 10_000
        except CorruptBatch:
            pass


# ---------------------------------------------------------------- bombs


def zstd_bomb(blocks: int, declared: int | None) -> bytes:
    """Run-length blocks of 128 KiB, four bytes each."""
    out = io.BytesIO()
    out.write(struct.pack("<I", 0xFD2FB528))
    if declared is None:
        out.write(bytes((0, 0x38)))  # no content size; window of 128 KiB
    else:
        out.write(bytes((0xC0, 0x38)) + struct.pack("<Q", declared))
    for number in range(blocks):
        out.write(
            struct.pack("<I", int(number == blocks - 1) | 1 << 1 | (128 * 1024) << 3)[:3] + b"\0"
        )
    return out.getvalue()


def snappy_bomb(frames: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(64 << 20)))
    if not frames:
        return block
    return (
        b"\x82SNAPPY\0"
        + struct.pack(">ii", 1, 1)
        + (struct.pack(">i", len(block)) + block) * frames
    )


def lz4_bomb(declared: int | None) -> bytes:
    packed = bytearray(
        lz4_frame.compress(bytes(64 << 20), store_size=declared is not None, block_size=7)
    )
    if declared is None:
        return bytes(packed)
    struct.pack_into("<Q", packed, 6, declared)
    return compression._with_right_header_checksum(packed)


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: zlib.compress(bytes(64 << 20), 1, 31)),
    "gzip members": (Codec.GZIP, lambda: zlib.compress(bytes(1 << 20), 1, 31) * 500),
    "snappy": (Codec.SNAPPY, lambda: snappy_bomb(0)),
    "snappy frames": (Codec.SNAPPY, lambda: snappy_bomb(16)),
    "snappy lie": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0fabc"),
    "lz4": (Codec.LZ4, lambda: lz4_bomb(None)),
    "lz4 lie": (Codec.LZ4, lambda: lz4_bomb(1 << 40)),
    "zstd": (Codec.ZSTD, lambda: zstd_bomb(16384, None)),
    "zstd declared": (Codec.ZSTD, lambda: zstd_bomb(16384, 2 << 30)),
    "zstd lie": (Codec.ZSTD, lambda: zstd_bomb(1, 1 << 50)),
    "zstd small lie": (Codec.ZSTD, lambda: zstd_bomb(16384, 1000)),
    "zstd window": (
        Codec.ZSTD,
        lambda: zstd_stream(bytes(64 << 20), window_log=27, compression_level=1),
    ),
}


# The peak is VmHWM, which begins anew in a new program; ru_maxrss would begin with the size of this
# process.
CHILD = """
import sys
from pathlib import Path
from millstream.wire.records.compression import compress, decompress
from millstream.wire.records.corrupt import CorruptBatch
def peak_kib():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
codec, limit = int(sys.argv[1]), int(sys.argv[2])
data = Path(sys.argv[3]).read_bytes()
decompress(codec, compress(codec, b"warm up"), max_bytes=100)
before = peak_kib()
try:
    decompress(codec, data, max_bytes=limit)
    print("decompressed")
except CorruptBatch as error:
    print(type(error).__name__)
print((peak_kib() - before) // 1024)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_fills_no_more_than_the_limit(name: str, tmp_path: Path) -> None:
    """Measured in a process of its own: resident memory at most the limit of 8 MiB and some working
    space.
    """
    codec, make = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(make())
    arguments = [sys.executable, "-c", CHILD, str(int(codec)), str(8 << 20), str(path)]
    outcome, grown_mib = subprocess.run(
        arguments, capture_output=True, text=True, check=True
    ).stdout.split()
    assert outcome in ("DecompressedTooLarge", "UnreadableCompression")
    assert outcome == "DecompressedTooLarge" or "lie" in name
    assert int(grown_mib) <= 8 + 16

"""The declared messages against each other and against kio, an independent implementation of the
same schemas.
"""

from __future__ import annotations

import importlib
import io
import uuid
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from millstream.wire.apis import APIS, Api
from millstream.wire.compiler import MAX_TAGS, compile_codec
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.schema import NULL_UUID, DecodeError, Struct
from support.samples import VERSIONS, sample
from support.steps import finish

IDS = [f"{api.name}-v{version}" for api, version in VERSIONS]


def messages(api: Api) -> list[type[Struct]]:
    return [api.request_class(), api.response_class()]


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=IDS)
def test_every_version_round_trips(api: Api, version: int) -> None:
    for cls in messages(api):
        for message in (sample(cls, version), cls()):
            data = bytes(message.encode(version))
            decoded, end = cls.decode(memoryview(data), version)
            assert end == len(data)
            assert decoded == normalise(message, version)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=IDS)
def test_codecs_in_steps_equal_the_others(api: Api, version: int) -> None:
    for cls in messages(api):
        for message in (sample(cls, version), cls()):
            data = bytes(message.encode(version))
            out = bytearray(b"head")
            encoding = message.encode_steps(version, out)
            for _ in encoding:
                assert len(out) > 4  # it grows from step to step
            assert out == b"head" + data
            decoded, end = finish(cls.decode_steps(memoryview(b"head" + data), version, 4))
            assert (decoded, end) == (cls.decode(data, version)[0], 4 + len(data))
            for cut in range(0, len(data), max(len(data) // 20, 1)):
                assert outcome_of_steps(cls, data[:cut], version) == outcome(
                    cls, data[:cut], version
                )


def outcome(cls: type[Struct], data: bytes, version: int) -> Any:
    try:
        return cls.decode(data, version)
    except DecodeError as error:
        return str(error)


def outcome_of_steps(cls: type[Struct], data: bytes, version: int) -> Any:
    try:
        return finish(cls.decode_steps(data, version))
    except DecodeError as error:
        return str(error)


def normalise(message: Struct, version: int) -> Struct:
    """What survives an encoding of this version: absent fields go back to their defaults."""
    defaults = type(message)()
    for field in message.fields:
        if version not in field.versions:
            setattr(message, field.name, getattr(defaults, field.name))
    return message


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=IDS)
def test_no_truncation_is_accepted_or_crashes(api: Api, version: int) -> None:
    for cls in messages(api):
        data = bytes(sample(cls, version).encode(version))
        for cut in range(len(data)):
            with pytest.raises(DecodeError):
                cls.decode(memoryview(data[:cut]), version)


def kio_class(api: Api, version: int, suffix: str) -> type | None:
    names = {"AlterConfigs": "alter_configs"}
    try:
        module = importlib.import_module(
            f"kio.schema.{names.get(api.name, api.module)}.v{version}.{suffix}"
        )
    except ModuleNotFoundError:
        return None
    return getattr(module, api.name + suffix.capitalize())


KIO = [
    (api, version, suffix)
    for api, version in VERSIONS
    for suffix in ("request", "response")
    if kio_class(api, version, suffix) is not None
]


@pytest.mark.parametrize(
    ("api", "version", "suffix"),
    KIO,
    ids=[f"{api.name}-v{version}-{suffix}" for api, version, suffix in KIO],
)
def test_bytes_equal_those_of_kio(api: Api, version: int, suffix: str) -> None:
    """Our bytes are read by kio, and kio writes the same bytes back."""
    theirs = kio_class(api, version, suffix)
    assert theirs is not None
    ours = api.request_class() if suffix == "request" else api.response_class()
    message = kio_friendly(sample(ours, version))
    data = bytes(message.encode(version))
    entity, rest = entity_reader(theirs)(memoryview(data), 0)
    assert rest == len(data)
    out = io.BytesIO()
    entity_writer(theirs)(out, entity)
    assert out.getvalue() == data


def kio_friendly(message: Struct) -> Struct:
    """kio turns some integers into durations and error enums: use numbers that it can hold."""
    for field in message.fields:
        value = getattr(message, field.name)
        if isinstance(value, Struct):
            kio_friendly(value)
        elif field.kind == "array" and isinstance(field.item, type):
            for item in value:
                kio_friendly(item)
        elif field.kind == "int16" and "error" in field.name:
            setattr(message, field.name, 3)
        elif field.name.endswith(("_ms", "timestamp")) and isinstance(value, int):
            setattr(message, field.name, 86_400_000)
    return message


def test_kio_covers_most_of_the_table() -> None:
    assert len(KIO) > 0.8 * 2 * len(VERSIONS)


def test_table_agrees_with_the_declarations() -> None:
    for api in APIS:
        for cls in messages(api):
            assert (cls.versions.first, cls.versions.last) == (api.min_version, api.max_version), (
                api.name
            )
            flexible = [v for v in range(api.min_version, api.max_version + 1) if v in cls.flexible]
            assert flexible == [
                v for v in range(api.min_version, api.max_version + 1) if api.flexible(v)
            ]


def test_unknown_tagged_fields_are_skipped() -> None:
    api = next(api for api in APIS if api.name == "Metadata")
    data = bytes(api.request_class()(topics=None).encode(12))
    assert data.endswith(b"\x00")
    extended = data[:-1] + b"\x01\x63\x03abc"
    decoded, end = api.request_class().decode(memoryview(extended), 12)
    assert end == len(extended)
    assert decoded == api.request_class()(topics=None)


@pytest.mark.parametrize("name", ["Metadata", "Fetch"])  # without and with tagged fields of its own
def test_more_tagged_fields_than_any_message_has_are_refused(name: str) -> None:
    """A frame full of empty ones would keep the loop busy for minutes."""
    api = next(api for api in APIS if api.name == name)
    data = bytes(api.request_class()().encode(12))
    for count, ok in ((MAX_TAGS, True), (MAX_TAGS + 1, False)):
        fields = b"".join(bytes((20 + tag, 0)) for tag in range(count))
        extended = memoryview(data[:-1] + bytes((count,)) + fields)
        if ok:
            assert api.request_class().decode(extended, 12)[1] == len(extended)
        else:
            with pytest.raises(DecodeError, match="tagged fields"):
                api.request_class().decode(extended, 12)


def test_a_count_larger_than_the_frame_is_refused_before_anything_is_allocated() -> None:
    api = next(api for api in APIS if api.name == "Metadata")
    with pytest.raises(DecodeError, match="count beyond the end"):
        api.request_class().decode(memoryview(b"\x7f\xff\xff\xff"), 1)


def test_codecs_are_compiled_once_per_version() -> None:
    api = next(api for api in APIS if api.name == "DescribeCluster")
    api.request_class()().encode(0)
    first = api.request_class().codecs[0]
    api.request_class()().encode(0)
    assert api.request_class().codecs[0] is first
    assert compile_codec(api.request_class(), 0, True) is not first


def test_null_uuid_is_sixteen_zero_bytes() -> None:
    assert uuid.UUID(int=0).bytes == NULL_UUID


def test_a_string_is_no_longer_than_fifteen_bits_can_tell() -> None:
    """Nor is it in Kafka: records, and older versions, have no room for the length
    of a longer one.
    """
    longest = FindCoordinatorRequest(coordinator_keys=["é" * 16_383 + "x"])
    assert FindCoordinatorRequest.decode(bytes(longest.encode(6)), 6)[0] == normalise(longest, 6)
    longer = FindCoordinatorRequest(coordinator_keys=["é" * 16_384])
    with pytest.raises(DecodeError, match="a string of 32768 bytes is too long"):
        FindCoordinatorRequest.decode(bytes(longer.encode(6)), 6)

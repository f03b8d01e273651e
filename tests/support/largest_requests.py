"""The largest requests of every API, made from the declarations: many items, named alike or each by
another name.

An Envelope has no items itself. Its largest requests are those of the APIs that are forwarded in
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from millstream.wire.apis import APIS, Api
from millstream.wire.frames import request_frame
from millstream.wire.messages.envelope import EnvelopeRequest
from millstream.wire.schema import Field, Struct
from support.samples import Known, request_like

MOST_ITEMS = 1 << 18


class LargeRequest(NamedTuple):
    """``shape`` says which array is filled and how."""

    api: Api
    version: int
    shape: str
    message: Struct

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}-{self.shape}"


def largest_requests(
    api: Api, known: Known, size: int, version: int | None = None
) -> Iterator[LargeRequest]:
    """Requests of about this many bytes: each array of the message filled, with equal items and
    with others.

    Of the newest version, unless another one is asked for.
    """
    if api.name == "Envelope":
        yield from _in_envelopes(api, known, size)
        return
    cls, version = api.request_class(), api.newest if version is None else version
    for path in _arrays(cls, version):
        for distinct in (False, True):
            message = request_like(cls, version, known)
            holder: Any = message
            for field in path[:-1]:
                items = getattr(holder, field.name)[:1]
                setattr(holder, field.name, items)
                holder = items[0]
            field = path[-1]
            setattr(holder, field.name, _filled(field, version, known, size, distinct))
            _cut_to(message, holder, field.name, version, size)
            names = ".".join(field.name for field in path)
            yield LargeRequest(
                api, version, f"{names}-{'distinct' if distinct else 'equal'}", message
            )


def _in_envelopes(envelope: Api, known: Known, size: int) -> Iterator[LargeRequest]:
    for api in APIS:
        for request in largest_requests(api, known, size) if api.forwarded else ():
            body = request.message.encode(api.newest)
            message = EnvelopeRequest(
                request_data=request_frame(api.key, api.newest, 1, "client", body),
                request_principal=None,
                client_host_address=b"127.0.0.1",
            )
            yield LargeRequest(envelope, envelope.newest, str(request), message)


def _cut_to(message: Struct, holder: Any, name: str, version: int, size: int) -> None:
    """Leave out as many items as the message is too large by."""
    items = getattr(holder, name)
    excess = len(message.encode(version)) - size
    if excess > 0:
        setattr(holder, name, items[: len(items) * size // (size + excess)])


def _arrays(cls: type[Struct], version: int) -> Iterator[tuple[Field, ...]]:
    """The way to every array of a message, through arrays of structs."""
    for field in cls.fields:
        if version in field.versions and field.kind == "array":
            yield (field,)
            if isinstance(field.item, type):
                for path in _arrays(field.item, version):
                    yield (field, *path)


def _filled(field: Field, version: int, known: Known, size: int, distinct: bool) -> list[Any]:
    if not isinstance(field.item, type):
        one = known.get(field.name, [0])
        return _values(
            str(field.item), one[0] if isinstance(one, list) and one else 0, size, distinct
        )
    item = _thin(request_like(field.item, version, known), version)
    width = len(field.item.encode(item, version)) + (6 if distinct else 0)
    count = min(size // width, MOST_ITEMS)
    if not distinct:
        return [item] * count
    return [_renamed(request_like(field.item, version, known), version, n) for n in range(count)]


def _thin(item: Struct, version: int) -> Struct:
    """With at most one item in each array within, so that there can be more of them."""
    for field in item.fields:
        if field.kind == "array" and version in field.versions and getattr(item, field.name):
            setattr(item, field.name, getattr(item, field.name)[:1])
    return item


def _renamed(item: Struct, version: int, number: int) -> Struct:
    _thin(item, version)
    for field in item.fields:
        if version not in field.versions:
            continue
        if field.kind == "string" and getattr(item, field.name) is not None:
            setattr(item, field.name, f"{number:x}")
        elif field.kind == "uuid":
            setattr(item, field.name, number.to_bytes(16, "big"))
        elif field.kind == "int32":
            setattr(item, field.name, number)
    return item


def _values(kind: str, one: Any, size: int, distinct: bool) -> list[Any]:
    if kind == "string":
        text = str(one) or "x"
        count = min(size // (len(text) + 8), MOST_ITEMS)
        return [f"{text}{n:x}" for n in range(count)] if distinct else [text] * count
    if kind == "uuid":
        return [
            (n if distinct else 1).to_bytes(16, "big") for n in range(min(size // 16, MOST_ITEMS))
        ]
    if kind == "bytes":
        return [b"x"] * min(size // 2, MOST_ITEMS)
    widths = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
    most = {"int8": 127, "int16": 32767}.get(kind, 1 << 30)
    count = min(size // widths[kind], MOST_ITEMS)
    return [n % most if distinct else 0 for n in range(count)]

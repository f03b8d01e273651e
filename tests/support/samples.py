"""Messages of every declared kind, made from the declarations themselves.

``sample`` fills each field with a value that is not its default, so that nothing hides.
``request_like`` does the same, but takes the values given for a field's name (or ``Struct.field``),
so that a request names what exists in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.wire.apis import APIS, Api
from millstream.wire.schema import Field, Struct

VERSIONS: list[tuple[Api, int]] = [
    (api, version) for api in APIS for version in range(api.min_version, api.max_version + 1)
]

Known = Mapping[str, object]


def primitive(kind: str, salt: int) -> object:
    """A value of a primitive kind, another one for each salt."""
    return {
        "bool": True,
        "int8": 5 + salt % 100,
        "int16": 7 + salt,
        "uint16": 40000 + salt,
        "int32": -70000 - salt,
        "int64": 1 << 40 | salt,
        "float64": 0.5 + salt,
        "uuid": bytes(range(16 - salt % 16, 32 - salt % 16)),
        "string": "né" + "x" * (salt % 7) + ("y" * 200 if salt % 3 == 0 else ""),
        "bytes": b"\x00\xff" * (salt % 5 + 1),
        "records": b"records",
    }[kind]


def sample(cls: type[Struct], version: int, salt: int = 1) -> Struct:
    """A message with no field at its default."""
    return request_like(cls, version, {}, salt)


def request_like(cls: type[Struct], version: int, known: Known, salt: int = 1) -> Struct:
    """A message whose fields have the known values; the others are made up."""
    values = {}
    for index, field in enumerate(cls.fields):
        if version in field.versions:
            values[field.name] = _value(cls, field, version, known, salt + index)
    return cls(**values)


def _value(cls: type[Struct], field: Field, version: int, known: Known, salt: int) -> object:
    for name in (f"{cls.__name__}.{field.name}", field.name):
        if name in known:
            found = known[name]
            return found() if isinstance(found, Callable) else found  # type: ignore[arg-type]
    if field.kind == "array":
        if isinstance(field.item, type):
            return [request_like(field.item, version, known, salt + i) for i in range(2)]
        return [primitive(str(field.item), salt + i) for i in range(3)]
    if field.kind == "struct":
        assert isinstance(field.item, type)
        return request_like(field.item, version, known, salt)
    return primitive(field.kind, salt)

"""Build a response for any API that refuses a whole request with one error.

Kafka's requests and responses have the same shape. A request has lists, for example of topics and
their partitions, and the response has a row for each element, with the same or a similar name. The
error goes into the innermost rows with an error field.
"""

from __future__ import annotations

from typing import Any

from millstream.core.errors import ErrorCode
from millstream.wire.apis import Api
from millstream.wire.schema import Field, Struct

_ERRORS = ("error_code", "partition_error_code")
_SYNONYMS = (
    ("name", "topic", "topic_name"),
    ("index", "partition", "partition_index"),
    ("key", "group_id", "group"),
)


def refusal(api: Api, version: int, request: Struct, code: ErrorCode) -> Struct:
    """Return a response that refuses all of ``request`` with ``code``."""
    return _refused(api.response_class(), version, request, code)


def _refused(kind: type[Struct], version: int, request: Any, code: ErrorCode) -> Struct:
    response = kind()
    _copy_names(response, kind, request)
    has_rows = False
    for field in _error_lists(kind, version):
        item: Any = field.item
        rows = [
            _refused(item, version, element, code)
            if isinstance(element, Struct)
            else _leaf(item, version, element, code)
            for element in _request_rows(request, version)
        ]
        setattr(response, field.name, rows)
        has_rows = has_rows or bool(rows)
    if not has_rows:
        _set_error(response, version, code)
    return response


def _set_error(row: Struct, version: int, code: ErrorCode) -> None:
    for name in _ERRORS:
        if _has(type(row), name, version):
            setattr(row, name, int(code))


def _error_lists(kind: type[Struct], version: int) -> list[Field]:
    """Return the first list whose rows have an error field, directly or nested.

    The first such list corresponds to the lists of the request.
    """
    lists = [
        field
        for field in kind.fields
        if field.kind == "array"
        and isinstance(field.item, type)
        and version in field.versions
        and _has_error(field.item, version)
    ]
    return lists[:1]


def _has_error(kind: Any, version: int) -> bool:
    return any(_has(kind, name, version) for name in _ERRORS) or bool(_error_lists(kind, version))


def _has(kind: type[Struct], name: str, version: int) -> bool:
    return any(field.name == name and version in field.versions for field in kind.fields)


def _request_rows(request: Any, version: int) -> list[Any]:
    """Return the elements of the request: rows, or plain values such as partitions or names."""
    for field in type(request).fields if isinstance(request, Struct) else ():
        if field.kind == "array" and version in field.versions:
            return list(getattr(request, field.name) or ())
    return []


def _copy_names(response: Struct, kind: type[Struct], request: Any) -> None:
    """Copy the fields that name a topic, partition or group from the request."""
    response_fields = {field.name for field in kind.fields} - {*_ERRORS, "error_message"}
    request_fields = (
        {field.name for field in type(request).fields} if isinstance(request, Struct) else set()
    )
    for name in response_fields & request_fields:
        value = getattr(request, name)
        if isinstance(value, str | bytes | int):
            setattr(response, name, value)
    for synonyms in _SYNONYMS:
        source = next((name for name in synonyms if name in request_fields), None)
        for name in synonyms if source else ():
            if name in response_fields and name not in request_fields:
                setattr(response, name, getattr(request, source or ""))


def _leaf(kind: Any, version: int, value: Any, code: ErrorCode) -> Struct:
    """Return a row for a plain value, which goes into the first field of the same type."""
    row: Struct = kind()
    for field in kind.fields:
        if field.name not in _ERRORS and isinstance(getattr(row, field.name), type(value)):
            setattr(row, field.name, value)
            break
    _set_error(row, version, code)
    return row

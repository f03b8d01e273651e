"""An answer that refuses everything that was asked for with one error, for any API.

Requests and answers of Kafka are shaped alike: what is asked for is in lists (of topics, of their partitions), and the answer has
a row for each, under the same name or another word for it. The error stands in the innermost rows that have a place for one.
"""

from __future__ import annotations

from typing import Any

from millstream.core.errors import ErrorCode
from millstream.wire.apis import Api
from millstream.wire.schema import Field, Struct

_ERRORS = ("error_code", "partition_error_code")
_SAME = (
    ("name", "topic", "topic_name"),
    ("index", "partition", "partition_index"),
    ("key", "group_id", "group"),
)


def refusal(api: Api, version: int, request: Struct, code: ErrorCode) -> Struct:
    """The answer to ``request`` that says ``code`` about all of it."""
    return _refused(api.response_class(), version, request, code)


def _refused(kind: type[Struct], version: int, asked: Any, code: ErrorCode) -> Struct:
    answer = kind()
    _copy_names(answer, kind, asked)
    deeper = _rows(kind, version)
    told = False
    for field in deeper:
        item: Any = field.item
        wanted = _asked_rows(asked, version)
        rows = [
            _refused(item, version, one, code) if isinstance(one, Struct) else _leaf(item, version, one, code)
            for one in wanted
        ]
        setattr(answer, field.name, rows)
        told = told or bool(rows)
    if not told:
        _tell(answer, version, code)
    return answer


def _tell(row: Struct, version: int, code: ErrorCode) -> None:
    for name in _ERRORS:
        if _has(type(row), name, version):
            setattr(row, name, int(code))


def _rows(kind: type[Struct], version: int) -> list[Field]:
    """The lists of rows that can tell an error, themselves or further in; the first of them answers what was asked."""
    found = [
        field
        for field in kind.fields
        if field.kind == "array"
        and isinstance(field.item, type)
        and version in field.versions
        and _tells(field.item, version)
    ]
    return found[:1]


def _tells(kind: Any, version: int) -> bool:
    return any(_has(kind, name, version) for name in _ERRORS) or bool(_rows(kind, version))


def _has(kind: type[Struct], name: str, version: int) -> bool:
    return any(field.name == name and version in field.versions for field in kind.fields)


def _asked_rows(asked: Any, version: int) -> list[Any]:
    """What is listed in the request: rows, or plain values such as partition numbers or names."""
    for field in type(asked).fields if isinstance(asked, Struct) else ():
        if field.kind == "array" and version in field.versions:
            return list(getattr(asked, field.name) or ())
    return []


def _copy_names(answer: Struct, kind: type[Struct], asked: Any) -> None:
    mine = {field.name for field in kind.fields} - {*_ERRORS, "error_message"}
    theirs = {field.name for field in type(asked).fields} if isinstance(asked, Struct) else set()
    for name in mine & theirs:
        value = getattr(asked, name)
        if isinstance(value, str | bytes | int):
            setattr(answer, name, value)
    for words in _SAME:
        source = next((word for word in words if word in theirs), None)
        for word in words if source else ():
            if word in mine and word not in theirs:
                setattr(answer, word, getattr(asked, source or ""))


def _leaf(kind: Any, version: int, value: Any, code: ErrorCode) -> Struct:
    """A row about a plain value: its first field of the same sort is that value."""
    row: Struct = kind()
    for field in kind.fields:
        if field.name not in _ERRORS and isinstance(getattr(row, field.name), type(value)):
            setattr(row, field.name, value)
            break
    _tell(row, version, code)
    return row

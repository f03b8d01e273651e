"""Settings: their rows, parsing and checking, and suggestions for mistyped names.

The rows are in ``broker_settings.py``, ``topic_settings.py`` and ``group_settings.py``, under
Kafka's names. Everything else (parsing, DescribeConfigs with sources and synonyms, validation, the
reference pages) is derived from them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None


def _no_problem(value: Value) -> None:
    return None


class SettingError(ValueError):
    """A wrong name or value of a setting; the message has the reason and the remedy.

    ``setting`` is its name, with which a caller finds the line of the file.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class Given(NamedTuple):
    """The text of a setting and its place: a line of a file, or the command line."""

    text: str
    where: str


class Type(IntEnum):
    """The type codes of DescribeConfigs v3."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(IntEnum):
    """When a broker setting may change (KIP-226)."""

    READ_ONLY = 0
    # For all brokers, or for one.
    CLUSTER_WIDE = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A row. ``inert``: accepted for compatibility, without effect; a note at startup says so."""

    name: str
    type: Type
    default: Value
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    update: Update = Update.READ_ONLY
    inert: bool = False
    internal: bool = False
    # Returns another problem of a value, as text that follows the name.
    problem: Callable[[Value], str | None] = _no_problem

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> Value:
        """Return the typed value, or raise SettingError with the reason."""
        value = self._convert(text.strip())
        self._check(value)
        return value

    def _convert(self, text: str) -> Value:
        try:
            if self.type is Type.BOOLEAN:
                return {"true": True, "false": False}[text.lower()]
            if self.type in (Type.INT, Type.SHORT, Type.LONG):
                return int(_number(text))
            if self.type is Type.DOUBLE:
                return float(_number(text))
        except (ValueError, KeyError):
            raise self._error(text, f"expected {_WORDS[self.type]}") from None
        if self.type is Type.LIST:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text

    def _check(self, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        if self.choices:
            for part in value if isinstance(value, tuple) else (str(value),):
                if part not in self.choices:
                    raise self._error(part, f"String must be one of: {', '.join(self.choices)}")
        problem = self.problem(value)
        if problem is not None:
            shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
            raise self._error(shown, f"{self.name} {problem}")

    def _check_bounds(self, value: float) -> None:
        type_max = {Type.INT: INT_MAX, Type.SHORT: 32767, Type.LONG: LONG_MAX}.get(self.type)
        if type_max is not None and not -type_max - 1 <= value <= type_max:
            raise self._error(value, "out of range for this type")
        if self.low is not None and value < self.low:
            raise self._error(value, f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise self._error(value, f"Value must be no more than {self.high}")

    def _error(self, value: object, reason: str) -> SettingError:
        return SettingError(
            f"Invalid value {value} for configuration {self.name}: {reason}", self.name
        )

    def text(self, value: Value) -> str | None:
        """Return the value as DescribeConfigs writes it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _number(text: str) -> str:
    """Return the text if it is a plain number: not Python's 1_000, not infinity."""
    if not text.isascii() or "_" in text or text.lower().strip("+-") in ("nan", "inf", "infinity"):
        raise ValueError(text)
    return text


_WORDS = {
    Type.BOOLEAN: "true or false",
    Type.INT: "a whole number",
    Type.SHORT: "a whole number",
    Type.LONG: "a whole number",
    Type.DOUBLE: "a number",
}


def table(rows: Iterable[Setting]) -> dict[str, Setting]:
    """Return the rows by name; a name must not be declared twice."""
    by_name: dict[str, Setting] = {}
    for row in rows:
        assert row.name not in by_name, row.name
        by_name[row.name] = row
    return by_name


def unknown(name: str, known: Iterable[str], kind: str = "setting") -> SettingError:
    """Return the error for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SettingError(f"Unknown {kind} {name}{hint}", name)


def parse_properties(text: str, source: str) -> dict[str, Given]:
    """Parse a Java .properties file: comments, continuation lines, = or : or blank as separator."""
    values: dict[str, Given] = {}
    for number, line in _logical_lines(text):
        where = f"{source}, line {number}"
        name, value = _split_property(line)
        if not name:
            raise SettingError(f"{where}: no name before the separator in {line!r}")
        values[name] = Given(value, where)
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines joined with their continuations, numbered by the first; no blanks or comments."""
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if not pending:
            first = number
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending = line[:-1]
        else:
            yield first, line
    if pending:
        yield first, pending


def _split_property(line: str) -> tuple[str, str]:
    for index, char in enumerate(line):
        if char in "=:" or char.isspace():
            rest = line[index:].lstrip()
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip()
            return line[:index], rest
    return line, ""


def parse_all(texts: Mapping[str, str], rows: Mapping[str, Setting], kind: str) -> dict[str, Value]:
    """Parse every text by its row; raise SettingError for unknown names."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = rows.get(name)
        if row is None:
            raise unknown(name, rows, kind)
        values[name] = row.parse(text)
    return values

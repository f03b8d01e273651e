"""What a setting is: its row, how its text is parsed and checked, and how a near miss is told.

The rows themselves are in ``broker_settings.py`` and ``topic_settings.py``, under Kafka's own names. Everything else
(parsing, DescribeConfigs with sources and synonyms, validation, the reference docs) is derived from them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None


class SettingError(ValueError):
    """A setting's name or value is wrong; the message says which, why, and what would be right."""


class Type(IntEnum):
    """The type codes of DescribeConfigs v3."""

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
    PER_BROKER = 1
    CLUSTER_WIDE = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. ``inert``: accepted because Kafka has it, but it means nothing here (and the start says so)."""

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

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value, or a SettingError that tells what is wrong with the text."""
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
            raise SettingError(
                f"Invalid value {text} for configuration {self.name}: expected {_WORDS[self.type]}"
            ) from None
        if self.type is Type.LIST:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text

    def _check(self, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        if self.choices:
            for part in value if isinstance(value, tuple) else (str(value),):
                if part not in self.choices:
                    raise SettingError(
                        f"Invalid value {part} for configuration {self.name}: "
                        f"String must be one of: {', '.join(self.choices)}"
                    )

    def _check_bounds(self, value: float) -> None:
        widest = {Type.INT: INT_MAX, Type.SHORT: 32767, Type.LONG: LONG_MAX}.get(self.type)
        if widest is not None and not -widest - 1 <= value <= widest:
            raise SettingError(
                f"Invalid value {value} for configuration {self.name}: not a number of this size"
            )
        if self.low is not None and value < self.low:
            raise SettingError(
                f"Invalid value {value} for configuration {self.name}: Value must be at least {self.low}"
            )
        if self.high is not None and value > self.high:
            raise SettingError(
                f"Invalid value {value} for configuration {self.name}: Value must be no more than {self.high}"
            )

    def text(self, value: Value) -> str | None:
        """How DescribeConfigs writes a value."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _number(text: str) -> str:
    """Only what is a number everywhere: neither Python's 1_000 nor its infinities."""
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
    """Rows by name; a name declared twice is a mistake of ours."""
    found: dict[str, Setting] = {}
    for row in rows:
        assert row.name not in found, row.name
        found[row.name] = row
    return found


def unknown(name: str, known: Iterable[str], what: str = "setting") -> SettingError:
    """The error for a name that no row has, with the nearest one that exists."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SettingError(f"Unknown {what} {name}{hint}")


def parse_properties(text: str, source: str) -> dict[str, str]:
    """A Java .properties file: comments, continuation lines, = or : or blank as separator."""
    values: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending = line[:-1]
            continue
        name, value = _split_property(line)
        if not name:
            raise SettingError(f"{source}, line {number}: no name before the separator in {line!r}")
        values[name] = value
    return values


def _split_property(line: str) -> tuple[str, str]:
    for index, char in enumerate(line):
        if char in "=:" or char.isspace():
            rest = line[index:].lstrip()
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip()
            return line[:index], rest
    return line, ""


def parse_all(texts: Mapping[str, str], rows: Mapping[str, Setting], what: str) -> dict[str, Value]:
    """Every text parsed by its row; unknown names are refused."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = rows.get(name)
        if row is None:
            raise unknown(name, rows, what)
        values[name] = row.parse(text)
    return values

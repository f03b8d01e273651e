"""SQLite: one file, one writer at a time. A commit is a sync of the file, and a number given at an insert is never committed late."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.connect.addresses import file_path
from millstream.connect.databases.column_guards import (
    MOST_WHOLE_DOUBLE,
    Guard,
    no_nan,
    no_number,
    whole_numbers,
)
from millstream.connect.databases.database import (
    BINARY,
    BOOLEAN,
    NUMBER,
    OTHER,
    PROGRESS,
    TEXT,
    TIME,
    Change,
    Column,
    Database,
    Moment,
    Position,
    Progress,
    RowFault,
    chunked,
    family_of,
)
from millstream.pipelines.errors import PipelineError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BUSY_S = 30.0
HALF_CHARACTER = "\ud800"
"""No text has it, so the reader of a text refuses what begins with it."""
EXACT_DIGITS = 15
"""SQLite makes floating-point numbers of decimals in columns that are declared as numbers."""
PROGRESS_TABLE = f"""
CREATE TABLE IF NOT EXISTS {PROGRESS} (
    writer TEXT NOT NULL, target TEXT NOT NULL, query TEXT NOT NULL, batch INTEGER NOT NULL, offsets TEXT NOT NULL,
    row_count INTEGER NOT NULL, refused TEXT NOT NULL, PRIMARY KEY (writer, target)
)"""
# Of what SQLite says with an OperationalError, what passes by itself. A file that cannot be opened may be one of too many.
_PASSING = re.compile(r"locked|busy|full|disk I/O|unable to open|readonly", re.I)
_DEFERRED = re.compile(r"\bINITIALLY\s+DEFERRED\b", re.I)
_PLACE = re.compile(r"unable to open|readonly", re.I)
# What values of a family are called by typeof(), where a family is stored in one way only.
_STORED_AS = {NUMBER: NUMBER, BOOLEAN: NUMBER, TEXT: "text", BINARY: "blob"}
_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
)


class Sqlite(Database):
    """A connection to a file. Foreign keys are kept to, as in other databases."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.path = file_path(url)
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        self.close()
        with self._told():
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA foreign_keys = ON")
            # Bytes that are no text become half characters, which whoever reads the text refuses.
            self._db.text_factory = lambda raw: raw.decode(errors="surrogateescape")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def db(self) -> sqlite3.Connection:
        if self._db is None:
            self.open()
        assert self._db is not None
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._told():
            self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._told():
                self._commit()
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def _commit(self) -> None:
        try:
            self.db.execute("COMMIT")
        except sqlite3.IntegrityError as error:  # rows of another table refer to what was removed
            raise PipelineError(f"{self.shown} does not take the batch: {error}") from None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _FAULTS:
            raise
        except sqlite3.DatabaseError as error:
            if _PLACE.search(str(error)):
                self._refuse_place()
            if isinstance(error, sqlite3.OperationalError) and _PASSING.search(str(error)):
                raise Unavailable(f"{self.shown} cannot be used now: {error}") from None
            raise PipelineError(f"{self.shown} cannot be used: {error}") from None

    def _refuse_place(self) -> None:
        """What does not pass of what SQLite calls a file that it is unable to open, or to write."""
        path = Path(self.path)
        if not path.parent.is_dir():
            raise PipelineError(
                f"{self.shown} cannot be used: there is no directory {path.parent}",
                hint="make it first, or check the name; three slashes and a relative path, four and an absolute one",
            ) from None
        if path.is_dir():
            raise PipelineError(f"{self.shown} cannot be used: it is a directory") from None
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PipelineError(f"{self.shown} cannot be used: it is not ours to write") from None

    # ---------------------------------------------------------------- tables

    def columns(self, table: str) -> list[Column] | None:
        if self._db is None and not Path(self.path).exists():
            return None  # looking into it would make it
        with self._told():
            found = self.db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        # cid, name, type, notnull, default, pk, hidden; an INTEGER PRIMARY KEY numbers itself
        own = [one for one in found if one[5]]
        itself = own[0][1] if len(own) == 1 and own[0][2].upper() == "INTEGER" else None
        return [
            Column(
                name,
                kind,
                _family(kind),
                bool(notnull) and default is None and name != itself,
                not notnull and name != itself,
            )
            for _, name, kind, notnull, default, _, hidden in found
            if not hidden
        ] or None

    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        with self._told():
            info = self.db.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            primary = tuple(one[1] for one in sorted(info, key=lambda one: one[5]) if one[5])
            keys = [primary] if primary else []
            for _, index, unique, _, partial in self.db.execute(f"PRAGMA index_list({quoted(table)})"):
                if unique and not partial:
                    parts = self.db.execute(f"PRAGMA index_info({quoted(index)})").fetchall()
                    keys.append(tuple(one[2] for one in parts))
        return [one for one in keys if all(one)]

    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None:
        columns = [f"{quoted(one.name)} {_declared(one.dataType)}" for one in schema.fields]
        if key:
            columns.append(f"PRIMARY KEY ({_list(key)})")
        with self._told():
            self.db.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)})")

    def spark_type(self, column: Column) -> str:
        kind = column.kind.upper()
        decimal = re.search(r"\((\d+)\s*,\s*(\d+)\)", kind)
        if column.family == NUMBER and decimal and "INT" not in kind:
            return f"decimal({decimal[1]},{decimal[2]})"
        if column.family == TIME:
            return "date" if kind == "DATE" else "timestamp"
        if column.family == NUMBER:
            return "bigint" if "INT" in kind else "double"
        return {BOOLEAN: "boolean", BINARY: "binary"}.get(column.family, "string")

    def takes(self, column: Column, kind: DataType) -> bool:
        """Times and decimals are stored as texts, and truth as 0 and 1."""
        from pyspark.sql.types import DecimalType

        family = family_of(kind)
        as_text = family == TIME or isinstance(kind, DecimalType)
        if isinstance(kind, DecimalType) and column.family == NUMBER and kind.precision > EXACT_DIGITS:
            raise PipelineError(
                f"the column {column.name} {column.kind} of {self.shown} keeps {EXACT_DIGITS} digits, and {kind.simpleString()} has more",
                hint="declare the column TEXT, or cast to fewer digits in the flow",
            )
        if (as_text and column.family == TEXT) or (family == BOOLEAN and column.family == NUMBER):
            return True
        return super().takes(column, kind)

    def guard(self, column: Column, kind: DataType) -> Guard | None:
        from pyspark.sql.types import DoubleType, FloatType, LongType

        if isinstance(kind, DoubleType | FloatType):
            return no_nan
        is_real = any(part in column.kind.upper() for part in ("REAL", "FLOA", "DOUB"))
        if isinstance(kind, LongType) and is_real:
            return whole_numbers(MOST_WHOLE_DOUBLE, column.kind)
        # A type that SQLite does not know, such as STRING, is one of numbers to it; no type at all is none.
        return no_number if family_of(kind) == TEXT and column.family == OTHER and column.kind else None

    # ---------------------------------------------------------------- writing

    def prepare(self, table: str) -> None:
        with self._told():
            self.db.execute(PROGRESS_TABLE)

    def locked_progress(self, writer: str, table: str) -> Progress | None:
        with self._told():
            found = self.db.execute(
                f"SELECT query, batch, offsets, row_count, refused FROM {PROGRESS} WHERE writer = ? AND target = ?",
                (writer, table),
            ).fetchone()
        return None if found is None else Progress(*found)

    def record(self, writer: str, table: str, progress: Progress) -> None:
        with self._told():
            self.db.execute(
                f"INSERT OR REPLACE INTO {PROGRESS} VALUES (?, ?, ?, ?, ?, ?, ?)", (writer, table, *progress)
            )

    def put(self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]) -> None:
        upsert, delete = _statements(table, columns, key)
        where = [list(columns).index(one) for one in key]
        with self._told():
            before = self._unreferenced(table)
            self.db.execute("SAVEPOINT part")
            try:
                for deleted, values in _runs(changes):
                    if deleted:
                        self.db.executemany(delete, [tuple(one[i] for i in where) for one in values])
                    else:
                        self.db.executemany(upsert, values)
                if later := self._unreferenced(table) - before:
                    raise sqlite3.IntegrityError(
                        f"FOREIGN KEY constraint failed: no such row in {min(later)[2]}"
                    )
            except _FAULTS as fault:
                if not self.db.in_transaction:
                    raise PipelineError(
                        f"table {table} of {self.shown} ended the transaction of a batch: {fault}",
                        hint="a trigger that refuses one row has to say RAISE(ABORT, ...), not RAISE(ROLLBACK, ...)",
                    ) from None
                self.db.execute("ROLLBACK TO part")
                raise RowFault(f"{fault}") from None
            finally:
                if self.db.in_transaction:
                    self.db.execute("RELEASE part")

    def _unreferenced(self, table: str) -> set[tuple[Any, ...]]:
        """Rows that break foreign keys which SQLite checks at the commit only, where one row would fail a whole batch."""
        made = self.db.execute(
            "SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (table,)
        ).fetchone()
        if not made or not _DEFERRED.search(made[0] or ""):
            return set()
        return set(self.db.execute(f"PRAGMA foreign_key_check({quoted(table)})").fetchall())

    # ---------------------------------------------------------------- reading

    def horizon(self, table: str, by: str) -> Moment:
        return ()  # one writer at a time: what is numbered at the insert is committed in order

    def next_change(self) -> Moment:
        return ()

    def newest(self, table: str, order: Sequence[str]) -> Position | None:
        self._check_kinds(table, order[0])
        down = ", ".join(f"{quoted(one)} DESC" for one in order)
        with self._told():
            found = self.db.execute(
                f"SELECT {_list(order)} FROM {quoted(table)} WHERE {quoted(order[0])} IS NOT NULL ORDER BY {down} LIMIT 1"
            ).fetchone()
        return None if found is None else tuple(found)

    def _check_kinds(self, table: str, column: str) -> None:
        """SQLite sorts numbers before texts before bytes, whatever is declared: rows of another kind than the others would be hidden."""
        kinds = {one.name: one.family for one in self.columns(table) or ()}
        declared = _STORED_AS.get(kinds.get(column, OTHER))
        name = quoted(column)
        query = f"SELECT {name}, typeof({name}) FROM {quoted(table)} WHERE {name} IS NOT NULL ORDER BY {name}"
        with self._told():
            ends = [self.db.execute(f"{query} {way} LIMIT 1").fetchone() for way in ("ASC", "DESC")]
        for value, kind in filter(None, ends):
            found = NUMBER if kind in ("integer", "real") else kind
            declared = declared or found
            if found != declared:
                raise PipelineError(
                    f"table {table} of {self.shown} has {value!r} in {column}, by which it is read: {found} among values "
                    f"that are {declared}, which SQLite does not sort among them",
                    hint="correct that row, or read by another column",
                )

    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        where, values = _between(order, start, end)
        some = f"SELECT {_list(order)} FROM {quoted(table)} WHERE {where} ORDER BY {_list(order)} LIMIT ?"
        down = ", ".join(f"{quoted(one)} DESC" for one in order)
        with self._told():
            found = self.db.execute(
                f"SELECT {_list(order)} FROM ({some}) ORDER BY {down} LIMIT 1", (*values, rows)
            ).fetchone()
        return None if found is None else tuple(found)

    def rows(
        self,
        table: str,
        columns: Mapping[str, str],
        order: Sequence[str],
        start: Position | None,
        end: Position,
    ) -> Iterator[list[bytes]]:
        where, values = _between(order, start, end)
        kinds = list(columns.items())

        def convert(row: Sequence[Any]) -> bytes:
            return json.dumps(
                {name: _json(value, kind) for (name, kind), value in zip(kinds, row, strict=True)}
            ).encode()

        with self._told():
            cursor = self.db.execute(
                f"SELECT {_list(list(columns))} FROM {quoted(table)} WHERE {where} ORDER BY {_list(order)}",
                values,
            )
            yield from chunked(cursor, convert)

    def any_without(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        where, values = f"{quoted(column)} IS NULL", list[Any]()
        if within is not None:
            by, *values = within
            where += f" AND {quoted(by)} BETWEEN ? AND ?"
        with self._told():
            query = f"SELECT 1 FROM {quoted(table)} WHERE {where} LIMIT 1"
            return self.db.execute(query, values).fetchone() is not None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _statements(table: str, columns: Sequence[str], key: Sequence[str]) -> tuple[str, str]:
    """What puts a row, and what removes the row of a key."""
    marks = ", ".join("?" for _ in columns)
    put = f"INSERT INTO {quoted(table)} ({_list(columns)}) VALUES ({marks})"
    if key:
        others = [f"{quoted(one)} = excluded.{quoted(one)}" for one in columns if one not in key]
        put += f" ON CONFLICT ({_list(key)}) DO " + (
            f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        )
    match = " AND ".join(f"{quoted(one)} = ?" for one in key)
    return put, f"DELETE FROM {quoted(table)} WHERE {match}"


def _runs(changes: Sequence[Change]) -> Iterator[tuple[bool, list[tuple[Any, ...]]]]:
    """Changes of one kind that follow one another, together, with values as SQLite stores them."""
    run: list[tuple[Any, ...]] = []
    kind = False
    for one in changes:
        if one.deleted != kind and run:
            yield kind, run
            run = []
        kind = one.deleted
        run.append(tuple(map(_stored, one.values)))
    if run:
        yield kind, run


def _between(order: Sequence[str], start: Position | None, end: Position) -> tuple[str, tuple[Any, ...]]:
    marks = ", ".join("?" for _ in order)
    where = f"({_list(order)}) <= ({marks})"
    if start is None:
        return f"{where} AND {quoted(order[0])} IS NOT NULL", end
    return f"{where} AND ({_list(order)}) > ({marks})", (*end, *start)


def _stored(value: Any) -> Any:
    """Times as texts of one width, which sort and which SQLite's own functions read; decimals as they are written."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _json(value: Any, kind: str) -> Any:
    """A value for the reader of a type; one of another type is made so that the reader refuses it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode() if kind == "binary" else HALF_CHARACTER + repr(value)
    if kind == "binary" and value is not None:
        return {"value": value}  # a text is no bytes, even where it looks like base64
    if kind == "string" and isinstance(value, int | float):
        return str(value)
    if kind == "boolean" and value in (0, 1):
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _family(kind: str) -> str:
    """By the words in a declared type, much as SQLite finds its affinity."""
    words = kind.upper()
    for part, family in (
        ("BOOL", BOOLEAN),
        ("DATE", TIME),
        ("TIME", TIME),
        ("INT", NUMBER),
        ("CHAR", TEXT),
        ("CLOB", TEXT),
        ("TEXT", TEXT),
        ("BLOB", BINARY),
        ("REAL", NUMBER),
        ("FLOA", NUMBER),
        ("DOUB", NUMBER),
        ("DEC", NUMBER),
        ("NUM", NUMBER),
    ):
        if part in words:
            return family
    return OTHER


def _declared(kind: DataType) -> str:
    """The type of a column that is made for a type of Spark. Decimals are texts: SQLite's numbers would round them."""
    from pyspark.sql import types as T

    if isinstance(kind, T.DecimalType):
        return "TEXT"
    if isinstance(kind, T.FractionalType):
        return "REAL"
    if isinstance(kind, T.DateType):
        return "DATE"
    return {NUMBER: "INTEGER", BOOLEAN: "BOOLEAN", TIME: "TIMESTAMP", BINARY: "BLOB"}.get(
        family_of(kind), "TEXT"
    )

"""PostgreSQL through psycopg: rows go in by COPY, and the progress row is locked for as long as a batch is being written."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.connect.databases.column_guards import (
    DOUBLE_DIGITS,
    FLOAT_DIGITS,
    MOST_WHOLE_DOUBLE,
    MOST_WHOLE_FLOAT,
    NAME_BYTES,
    Guard,
    decimals,
    fractions,
    short_bytes,
    trailing_spaces,
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
from millstream.connect.packages import need
from millstream.pipelines.errors import PipelineError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

STAGE = "millstream_stage"
# Transactions that may write here: not our own, of which those that write have a number.
_OTHERS = """pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
    AND pid <> pg_backend_pid() AND (application_name <> 'millstream' OR backend_xid IS NOT NULL)"""
# A server that has vanished is noticed within half a minute, unless the URL says otherwise.
CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "millstream",
}
PROGRESS_COLUMNS = """
    writer text, target text, query text, batch bigint, offsets text, row_count bigint, refused text,
    PRIMARY KEY (writer, target)"""
_FAMILIES = {
    NUMBER: {"smallint", "integer", "bigint", "numeric", "real", "double precision", "money"},
    TEXT: {"text", "character varying", "character", "name", '"char"'},
    BOOLEAN: {"boolean"},
    TIME: {"timestamp without time zone", "timestamp with time zone", "date"},
    BINARY: {"bytea"},
}
_SPARK = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "numeric": "decimal(38,18)",  # without a precision; what does not fit is told, not rounded
    "boolean": "boolean",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_FLOAT_DIGITS = {"real": FLOAT_DIGITS, "double precision": DOUBLE_DIGITS}
# Classes of SQLSTATE. What no row is to blame for: things the server cannot do, states of transactions, rights, names, its insides. Whatever else is
# said about a row may come from it: data, constraints, views, keys that are too long, any code that a trigger chose to raise.
_NOT_OF_A_ROW = (
    "0A",
    "25",
    "26",
    "28",
    "2B",
    "2D",
    "34",
    "3B",
    "3D",
    "3F",
    "42",
    "54001",
    "54011",
    "54023",
    "F0",
    "HV",
    "XX",
)
# What passes by itself: connections, rollbacks, resources, interventions, locks; a server that is read-only is a standby about to take over.
_PASSING = ("08", "40", "53", "57", "58", "55P03", "25006")
# libpq passes on what a server says to somebody who connects, but not its SQLSTATE. What of it stays the same however often one tries: passwords,
# roles, databases, who may connect from where. Whatever else is said (starting up, too many clients, another language) may pass.
_FOR_GOOD = re.compile(
    r"""authentication\ failed\ for | no\ password\ supplied | pg_hba\.conf | permission\ denied\ for
    | (database|role)\ ".*"\ does\ not\ exist | is\ not\ permitted\ to\ log\ in
    | unrecognized\ configuration\ parameter | does\ not\ support\ SSL | certificate\ verify\ failed""",
    re.VERBOSE,
)


class Postgresql(Database):
    """A connection, with times in UTC."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.psycopg = need("psycopg", "PostgreSQL tables")
        self._db: Any = None
        self._inside = False
        """A transaction: a new connection would be outside of it."""

    def open(self) -> None:
        self.close()
        with self._told():
            given = self.psycopg.conninfo.conninfo_to_dict(self.url)
            self._db = self.psycopg.connect(**{**CONNECTION, **given}, autocommit=True)
            self._db.execute("SET TIME ZONE 'UTC'")
            self._db.execute("SET datestyle = 'ISO'")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def db(self) -> Any:
        if self._db is None or self._db.closed:
            if self._inside:
                raise Unavailable(f"{self.shown} cannot be used now: the connection is lost")
            self.open()
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._told(), self.db.transaction():
            # Constraints that are checked at the commit would fail a whole batch for one row.
            self._db.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self.psycopg.Error as error:
            state = error.sqlstate or ""
            said = _said(error)
            lost = (
                isinstance(error, self.psycopg.OperationalError | self.psycopg.InterfaceError) and not state
            )
            if state.startswith(_PASSING) or (lost and not _FOR_GOOD.search(said)):
                raise Unavailable(f"{self.shown} cannot be used now: {said}") from None
            raise PipelineError(f"{self.shown} cannot be used: {said}", hint=_advice(state, said)) from None

    # ---------------------------------------------------------------- tables

    def columns(self, table: str) -> list[Column] | None:
        query = """
            SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '', NOT attnotnull
            FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
              AND attgenerated = '' ORDER BY attnum"""
        with self._told():
            found = self.db.execute(query, (_value(table),)).fetchall()
        return [Column(name, kind, _family(kind), *rest) for name, kind, *rest in found] or None

    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        query = """
            SELECT array_agg(attname::text ORDER BY ord) FROM pg_index, unnest(indkey) WITH ORDINALITY AS k(num, ord), pg_attribute
            WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indexprs IS NULL
              AND attrelid = indrelid AND attnum = k.num GROUP BY indexrelid, indisprimary ORDER BY indisprimary DESC"""
        with self._told():
            return [tuple(one[0]) for one in self.db.execute(query, (_value(table),)).fetchall()]

    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None:
        columns = [f"{quoted(one.name)} {_declared(one.dataType)}" for one in schema.fields]
        if key:
            columns.append(f"PRIMARY KEY ({_list(key)})")
        with self._told():
            self._run(f"CREATE TABLE {_text(table)} ({', '.join(columns)})")

    def spark_type(self, column: Column) -> str:
        kind = re.sub(r"\(.*?\)", "", column.kind).strip()
        decimal = re.match(r"numeric\((\d+),(\d+)\)", column.kind)
        if decimal:
            return f"decimal({decimal[1]},{decimal[2]})"
        return _SPARK.get(kind, "string")

    def takes(self, column: Column, kind: DataType) -> bool:
        """Not where every other value would be rounded: doubles in real, long decimals in either, times in a date."""
        from pyspark.sql import types as T

        if column.kind == "date":
            return isinstance(kind, T.DateType)
        if digits := _FLOAT_DIGITS.get(column.kind):
            exact = not isinstance(kind, T.DecimalType) or kind.precision <= digits
            if not exact or (isinstance(kind, T.DoubleType) and column.kind == "real"):
                return False
        return super().takes(column, kind)

    def guard(self, column: Column, kind: DataType) -> Guard | None:
        from pyspark.sql import types as T

        size = re.search(r"\((\d+)(?:,(-?\d+))?\)", column.kind)
        plain = re.sub(r"\(.*?\)", "", column.kind)
        if column.family == NUMBER and isinstance(kind, T.FractionalType):
            scale = 2 if plain == "money" else int(size[2]) if size and plain == "numeric" else None
            return None if scale is None else decimals(scale, column.kind)
        if isinstance(kind, T.IntegerType | T.LongType) and plain in _FLOAT_DIGITS:
            most = MOST_WHOLE_FLOAT if plain == "real" else MOST_WHOLE_DOUBLE
            return whole_numbers(most, column.kind)
        if isinstance(kind, T.TimestampType | T.TimestampNTZType) and size and plain.startswith("timestamp"):
            return fractions(int(size[1]), column.kind)
        if family_of(kind) == TEXT and size and plain in ("character varying", "character"):
            return trailing_spaces(int(size[1]), column.kind)
        longest = {"name": NAME_BYTES, '"char"': 1}.get(column.kind)
        return short_bytes(longest, column.kind) if longest and family_of(kind) == TEXT else None

    # ---------------------------------------------------------------- writing

    def prepare(self, table: str) -> None:
        place = self._progress_table(table)
        with self._told():
            if self._run("SELECT to_regclass(%s)", (place.replace("%%", "%"),)).fetchone()[0] is None:
                with self.db.transaction():
                    # Two flows that make the table at the same moment would meet in the catalog.
                    self._run("SELECT pg_advisory_xact_lock(hashtext(%s))", (place,))
                    self._run(f"CREATE TABLE IF NOT EXISTS {place} ({PROGRESS_COLUMNS})")

    def locked_progress(self, writer: str, table: str) -> Progress | None:
        place = self._progress_table(table)
        with self._told():
            self._run(
                f"INSERT INTO {place} (writer, target) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (writer, table),
            )
            found = self._run(
                f"SELECT query, batch, offsets, row_count, refused FROM {place} WHERE writer = %s AND target = %s FOR UPDATE",
                (writer, table),
            ).fetchone()
        return None if found is None or found[1] is None else Progress(*found)

    def record(self, writer: str, table: str, progress: Progress) -> None:
        with self._told():
            self._run(
                f"UPDATE {self._progress_table(table)} SET query = %s, batch = %s, offsets = %s, row_count = %s, refused = %s "
                "WHERE writer = %s AND target = %s",
                (*progress, writer, table),
            )

    def put(self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]) -> None:
        """With a key only the last change of each counts: the others would be overwritten."""
        try:
            with self._told(), self.db.transaction():
                try:
                    if key:
                        self._merge(table, columns, key, changes)
                    else:
                        self._copy(_text(table), columns, [one.values for one in changes])
                except self.psycopg.Error as error:
                    state = error.sqlstate or ""
                    of_a_row = state and not state.startswith((*_PASSING, *_NOT_OF_A_ROW))
                    if of_a_row or isinstance(error, self.psycopg.DataError):
                        raise RowFault(_reason(error)) from None
                    raise
        except (ValueError, OverflowError) as error:  # what cannot be told to the server at all
            raise RowFault(str(error)) from None

    def _merge(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> None:
        where = [list(columns).index(one) for one in key]
        last = {tuple(one.values[i] for i in where): one for one in changes}
        kept = [one.values for one in last.values() if not one.deleted]
        gone = [found for found, one in last.items() if one.deleted]
        if kept:
            self._run(
                f"CREATE TEMP TABLE {STAGE} ON COMMIT DROP AS SELECT {_list(columns)} FROM {_text(table)} WITH NO DATA"
            )
            self._copy(STAGE, columns, kept)
            others = [f"{quoted(one)} = EXCLUDED.{quoted(one)}" for one in columns if one not in key]
            done = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
            self._run(
                f"INSERT INTO {_text(table)} ({_list(columns)}) SELECT {_list(columns)} FROM {STAGE} "
                f"ON CONFLICT ({_list(key)}) DO {done}"
            )
            self._run(f"DROP TABLE {STAGE}")
        if gone:
            match = " AND ".join(f"{quoted(one)} = %s" for one in key)
            with self.db.cursor() as cursor:
                cursor.executemany(f"DELETE FROM {_text(table)} WHERE {match}", gone)

    def _copy(self, place: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        query = f"COPY {place} ({_list(columns)}) FROM STDIN".replace("%%", "%")  # it takes no values
        with self.db.cursor() as cursor, cursor.copy(query) as copy:
            for one in rows:
                copy.write_row(one)

    # ---------------------------------------------------------------- reading

    def horizon(self, table: str, by: str) -> Moment:
        """Numbers of transactions say which of those that have written are open. now() is the time at which a transaction began, which may have
        read only so far and has no number then: where a table is read by a time, none that began earlier may be open."""
        query = "SELECT txid_snapshot_xmin(txid_current_snapshot()), NULL"
        if any(one.name == by and one.family == TIME for one in self.columns(table) or ()):
            query = f"SELECT txid_snapshot_xmin(txid_current_snapshot()), min({_microseconds('xact_start')}) FROM {_OTHERS}"
        with self._told():
            number, began = self._run(query).fetchone()
        return int(number), sys.maxsize if began is None else int(began)

    def next_change(self) -> Moment:
        query = f"SELECT txid_snapshot_xmax(txid_current_snapshot()), {_microseconds('clock_timestamp()')}"
        with self._told():
            number, now = self._run(query).fetchone()
        return int(number), int(now)

    def under_way(self) -> str:
        query = f"""
            SELECT pid, application_name, usename, state, date_trunc('second', clock_timestamp() - xact_start)::text
            FROM {_OTHERS} ORDER BY xact_start LIMIT 1"""
        with self._told():
            found = self._run(query).fetchone()
        if found is None:  # prepared transactions, or those of others that this role may not see
            return f"a transaction of {self.shown}"
        pid, application, user, state, age = found
        return f"the transaction of process {pid} ({application or 'no application name'}, user {user}, {state} for {age}) of {self.shown}"

    def newest(self, table: str, order: Sequence[str]) -> Position | None:
        # Of the table: the name alone would be that of the text which is selected.
        down = ", ".join(f"found.{quoted(one)} DESC" for one in order)
        with self._told():
            found = self._run(
                f"SELECT {_texts(order)} FROM {_text(table)} AS found WHERE {quoted(order[0])} IS NOT NULL ORDER BY {down} LIMIT 1"
            ).fetchone()
        return None if found is None else tuple(found)

    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        where, values = self._between(table, order, start, end)
        some = f"SELECT {_list(order)} FROM {_text(table)} WHERE {where} ORDER BY {_list(order)} LIMIT %s"
        # Of the table: the name alone would be that of the text which is selected.
        down = ", ".join(f"found.{quoted(one)} DESC" for one in order)
        with self._told():
            found = self._run(
                f"SELECT {_texts(order)} FROM ({some}) AS found ORDER BY {down} LIMIT 1", (*values, rows)
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
        where, values = self._between(table, order, start, end)
        texts = {one.name for one in self.columns(table) or () if one.family == TEXT}
        parts = [
            f"{_read_as(kind, quoted(name), is_text=name in texts)} AS {quoted(name)}"
            for name, kind in columns.items()
        ]
        query = (
            f"SELECT row_to_json(one)::text FROM (SELECT {', '.join(parts)} FROM {_text(table)} WHERE {where} "
            f"ORDER BY {_list(order)}) AS one"
        )
        with self._told(), self.db.transaction(), self.db.cursor("millstream") as cursor:
            cursor.itersize = 5_000
            cursor.execute(query, values)
            yield from chunked(cursor, lambda row: row[0].encode())

    def any_without(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        where, values = f"{quoted(column)} IS NULL", list[Any]()
        if within is not None:
            by, *values = within
            (kind,) = [one.kind for one in self.columns(table) or () if one.name == by]
            where += f" AND {quoted(by)} BETWEEN %s::{kind} AND %s::{kind}"
        with self._told():
            query = f"SELECT 1 FROM {_text(table)} WHERE {where} LIMIT 1"
            return self._run(query, values).fetchone() is not None

    # ---------------------------------------------------------------- small things

    def _run(self, query: str, values: Sequence[Any] = ()) -> Any:
        return self.db.execute(query, values)

    def _progress_table(self, table: str) -> str:
        schema, dot, _ = table.rpartition(".")
        return f"{quoted(schema)}.{PROGRESS}" if dot else PROGRESS

    def _between(
        self, table: str, order: Sequence[str], start: Position | None, end: Position
    ) -> tuple[str, tuple[Any, ...]]:
        kinds = {one.name: one.kind for one in self.columns(table) or ()}
        marks = ", ".join(f"%s::{kinds[one]}" for one in order)
        where = f"({_list(order)}) <= ({marks})"
        return (
            (where, end) if start is None else (f"{where} AND ({_list(order)}) > ({marks})", (*end, *start))
        )


def quoted(name: str) -> str:
    """A name within a statement, in which psycopg would take a single % for the place of a value."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _texts(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(one)}::text" for one in names)


def _microseconds(time: str) -> str:
    return f"(extract(epoch FROM {time}) * 1000000)::bigint"


def _read_as(kind: str, column: str, *, is_text: bool = False) -> str:
    """A column as JSON can hold it for a type of Spark."""
    if (
        kind == "string" and not is_text
    ):  # numbers, arrays and JSON as PostgreSQL writes them: Spark would write them in another way
        return (
            f"CASE json_typeof(to_json({column})) WHEN 'string' THEN to_json({column}) WHEN 'null' THEN NULL "
            f"ELSE to_json(to_json({column})::text) END"
        )
    if kind == "binary":  # encode() breaks lines after 76 characters
        return f"translate(encode({column}, 'base64'), E'\\n', '')"
    if decimal := re.match(
        r"decimal\(\d+,(\d+)\)", kind
    ):  # Spark would round: a text makes the row a dead letter
        return (
            f"CASE WHEN {column}::numeric = round({column}::numeric, {decimal[1]}) THEN to_json({column}) "
            f"ELSE to_json({column}::text || ' has more digits') END"
        )
    if kind in ("date", "timestamp", "timestamp_ntz"):  # Spark would not see what is behind the date
        return f"CASE WHEN {column}::text LIKE '%% BC' THEN to_json('no time of Spark: ' || {column}::text) ELSE to_json({column}) END"
    return column


def _text(table: str) -> str:
    """``orders`` or ``sales.orders`` as PostgreSQL reads it."""
    schema, dot, name = table.rpartition(".")
    return f"{quoted(schema)}.{quoted(name)}" if dot else quoted(name)


def _value(table: str) -> str:
    """The same where it is a value of a statement."""
    return _text(table).replace("%%", "%")


def _said(error: Any) -> str:
    """In one line, and of a refused connection only the reason: where it was to go, the URL says."""
    text = " ".join(str(error).split())
    return re.sub(r"^.* failed: (FATAL: |fe_sendauth: )", "", text)


def _advice(state: str, said: str) -> str:
    """What to do about what does not pass by itself."""
    if "password" in said:
        return "passwords belong into ~/.pgpass or PGPASSWORD"
    if 'database "' in said and "does not exist" in said:
        return "create the database first, or check the name"
    return {
        "3F000": "create the schema first, or check the name",
        "42P01": "create the table first, or check the name",
        "42501": "grant the role what it needs",
    }.get(state, "")


def _reason(error: Any) -> str:
    """What the server says, with the detail that names the value."""
    said = [str(error.diag.message_primary or error), str(error.diag.message_detail or "")]
    return "; ".join(one for one in said if one)


def _family(kind: str) -> str:
    plain = re.sub(r"\(.*?\)", "", kind).strip()
    return next((family for family, names in _FAMILIES.items() if plain in names), OTHER)


def _declared(kind: DataType) -> str:
    """The type of a column that is made for a type of Spark."""
    from pyspark.sql import types as T

    names: list[tuple[Any, str]] = [
        ((T.ByteType, T.ShortType), "smallint"),
        (T.IntegerType, "integer"),
        (T.LongType, "bigint"),
        (T.FloatType, "real"),
        (T.DoubleType, "double precision"),
        (T.TimestampType, "timestamptz"),
        (T.TimestampNTZType, "timestamp"),
        (T.DateType, "date"),
        ((T.StructType, T.ArrayType, T.MapType), "jsonb"),
    ]
    if isinstance(kind, T.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    found = next((name for types, name in names if isinstance(kind, types)), None)
    return found or {BOOLEAN: "boolean", BINARY: "bytea"}.get(family_of(kind), "text")

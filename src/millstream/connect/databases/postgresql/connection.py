"""A psycopg connection whose errors are sorted: passing, permanent, or the fault of one row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from millstream.connect.databases.database import Connection, RowFault
from millstream.connect.packages import need
from millstream.pipelines.errors import PipelineError, Unavailable

# A server that has vanished is noticed within half a minute, unless the URL says otherwise.
DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "millstream",
}
# SQLSTATE prefixes of errors that no row causes: unsupported features, transaction states,
# permissions, names, server internals. Any other error may come from a row: data, constraints,
# views, keys that are too long, any code that a trigger raises.
_NOT_A_ROW = (
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
# Errors that pass without intervention: connections, rollbacks, resources, operators, locks.
# A read-only server is a standby that is about to take over.
_TRANSIENT = ("08", "40", "53", "57", "58", "55P03", "25006")
# libpq passes on the text of a server that rejects a connection, but not its SQLSTATE. These texts
# are permanent: passwords, roles, databases, host rules. Any other text (starting up, too many
# clients, another language) may pass.
_PERMANENT = re.compile(
    r"""authentication\ failed\ for | no\ password\ supplied | pg_hba\.conf | permission\ denied\ for
    | (database|role)\ ".*"\ does\ not\ exist | is\ not\ permitted\ to\ log\ in
    | unrecognized\ configuration\ parameter | does\ not\ support\ SSL | certificate\ verify\ failed""",
    re.VERBOSE,
)


class PostgresqlConnection(Connection):
    """A connection with times in UTC."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.psycopg = need("psycopg", "PostgreSQL tables")
        self._session: Any = None
        self._in_transaction = False
        """If set, reconnecting is wrong: the new session would be outside of the transaction."""

    def open(self) -> None:
        self.close()
        with self.errors():
            parameters = self.psycopg.conninfo.conninfo_to_dict(self.url)
            self._session = self.psycopg.connect(**{**DEFAULTS, **parameters}, autocommit=True)
            self._session.execute("SET TIME ZONE 'UTC'")
            self._session.execute("SET datestyle = 'ISO'")

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def session(self) -> Any:
        """The psycopg connection, opened again if it was lost."""
        if self._session is None or self._session.closed:
            if self._in_transaction:
                raise Unavailable(f"{self.shown} cannot be used now: the connection is lost")
            self.open()
        return self._session

    def execute(self, query: str, values: Sequence[Any] = ()) -> Any:
        return self.session.execute(query, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.errors(), self.session.transaction():
            # A constraint that is checked at commit would fail the whole batch for one row.
            self._session.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._in_transaction = True
            try:
                yield
            finally:
                self._in_transaction = False

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate errors of psycopg into Unavailable and PipelineError."""
        try:
            yield
        except self.psycopg.Error as error:
            state = error.sqlstate or ""
            message = _message(error)
            connecting = self.psycopg.OperationalError | self.psycopg.InterfaceError
            lost = isinstance(error, connecting) and not state
            if state.startswith(_TRANSIENT) or (lost and not _PERMANENT.search(message)):
                raise Unavailable(f"{self.shown} cannot be used now: {message}") from None
            hint = _hint(state, message)
            raise PipelineError(f"{self.shown} cannot be used: {message}", hint=hint) from None

    @contextmanager
    def row_faults(self) -> Iterator[None]:
        """Translate errors that a row may have caused into RowFault; pass on all others."""
        try:
            yield
        except self.psycopg.Error as error:
            state = error.sqlstate or ""
            of_a_row = state and not state.startswith((*_TRANSIENT, *_NOT_A_ROW))
            if of_a_row or isinstance(error, self.psycopg.DataError):
                raise RowFault(_reason(error)) from None
            raise


def _message(error: Any) -> str:
    """Return an error in one line; of a failed connection only the reason."""
    text = " ".join(str(error).split())
    return re.sub(r"^.* failed: (FATAL: |fe_sendauth: )", "", text)


def _hint(state: str, message: str) -> str:
    """Return the remedy for a permanent error."""
    if "password" in message:
        return "passwords belong into ~/.pgpass or PGPASSWORD"
    if 'database "' in message and "does not exist" in message:
        return "create the database first, or check the name"
    return {
        "3F000": "create the schema first, or check the name",
        "42P01": "create the table first, or check the name",
        "42501": "grant the role what it needs",
    }.get(state, "")


def _reason(error: Any) -> str:
    """Return the server's message with the detail that names the value."""
    parts = [str(error.diag.message_primary or error), str(error.diag.message_detail or "")]
    return "; ".join(part for part in parts if part)

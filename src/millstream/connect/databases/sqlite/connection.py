"""A connection to a file of SQLite whose errors are sorted: passing, permanent, or of one row."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.connect.addresses import file_path
from millstream.connect.databases.database import Connection
from millstream.pipelines.errors import PipelineError, Unavailable

BUSY_S = 30.0
ROW_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
)
# Texts of an OperationalError that may pass. "Unable to open" may mean too many open files.
_TRANSIENT = re.compile(r"locked|busy|full|disk I/O|unable to open|readonly", re.I)
_OF_THE_FILE = re.compile(r"unable to open|readonly", re.I)


class SqliteConnection(Connection):
    """A connection to a file. It enforces foreign keys, as other databases do."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.path = file_path(url)
        self._session: sqlite3.Connection | None = None

    def open(self) -> None:
        self.close()
        with self.errors():
            self._session = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._session.execute("PRAGMA foreign_keys = ON")
            # Bytes that are not UTF-8 become lone surrogates, which every reader of text rejects.
            self._session.text_factory = lambda raw: raw.decode(errors="surrogateescape")

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def exists(self) -> bool:
        """Whether the file exists; opening a missing file would create it."""
        return self._session is not None or Path(self.path).exists()

    @property
    def session(self) -> sqlite3.Connection:
        if self._session is None:
            self.open()
        assert self._session is not None
        return self._session

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.errors():
            self.session.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self.errors():
                self._commit()
        except BaseException:
            if self.session.in_transaction:
                self.session.execute("ROLLBACK")
            raise

    def _commit(self) -> None:
        try:
            self.session.execute("COMMIT")
        # rows of another table refer to deleted ones
        except sqlite3.IntegrityError as error:
            raise PipelineError(f"{self.shown} rejects the batch: {error}") from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate errors into Unavailable and PipelineError, except those of single rows."""
        try:
            yield
        except ROW_FAULTS:
            raise
        except sqlite3.DatabaseError as error:
            if _OF_THE_FILE.search(str(error)):
                self._check_file()
            if isinstance(error, sqlite3.OperationalError) and _TRANSIENT.search(str(error)):
                raise Unavailable(f"{self.shown} cannot be used now: {error}") from None
            raise PipelineError(f"{self.shown} cannot be used: {error}") from None

    def _check_file(self) -> None:
        """Raise if the file can never be opened or written."""
        path = Path(self.path)
        if not path.parent.is_dir():
            raise PipelineError(
                f"{self.shown} cannot be used: directory {path.parent} does not exist",
                hint="create it first, or check the name; "
                "three slashes and a relative path, or four and an absolute one",
            ) from None
        if path.is_dir():
            raise PipelineError(f"{self.shown} cannot be used: it is a directory") from None
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PipelineError(f"{self.shown} cannot be used: no permission to write it") from None

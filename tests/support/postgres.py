"""A PostgreSQL server of a test's own, where Debian's package (or another one) has put its
programs.

It runs in a directory below /tmp that its user may enter (PostgreSQL refuses to run as root), and
listens on a Unix socket there only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0
GUARDED = "guarded"
"""A role that needs a password, once a test has made it; all others need none."""


def programs() -> Path | None:
    """Where ``initdb`` and ``postgres`` are; the newest of several versions."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: float(one.parts[-3])
    )
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def why_not() -> str | None:
    """Why there can be no server here; None if there can."""
    if programs() is None:
        return "there is no initdb here: apt-get install postgresql"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no other user"
    return None


def needed() -> None:
    """Skips the test where there can be no server: PostgreSQL comes from Debian, which is optional,
    and cannot be had from PyPI.
    """
    if reason := why_not():
        pytest.skip(reason)


def _user() -> int | None:
    """Whom the server runs as: nobody else than whoever runs the tests, unless that is root."""
    if os.geteuid() != 0:
        return os.geteuid()
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Postgres:
    """A server; ``url`` is its database."""

    def __init__(self, directory: Path, address: str = "") -> None:
        self.directory = directory
        self.data = directory / "data"
        self._address = address
        self.port = free_port() if address else 5432
        self.url = f"postgresql://tester@/postgres?host={directory}&port={self.port}"
        self.jdbc = f"jdbc:postgresql://{address}:{self.port}/postgres?user=tester"
        self._process: subprocess.Popen[bytes] | None = None
        uid = _user()
        assert uid is not None
        self._as: dict[str, Any] = (
            {"user": uid, "group": pwd.getpwuid(uid).pw_gid} if os.geteuid() == 0 else {}
        )
        if self._as:
            os.chown(directory, self._as["user"], self._as["group"])
        bin_directory = programs()
        assert bin_directory is not None
        self._bin = bin_directory

    def make(self) -> None:
        words = [self._bin / "initdb", "-D", self.data, "-U", "tester", "-A", "trust", "--no-sync"]
        words += ["--locale=C", "-E", "UTF8"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=self.directory, **self._as)
        rules = self.data / "pg_hba.conf"
        rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")

    def start(self) -> None:
        """Also after a kill: processes of the old server may still hold its memory for a moment."""
        deadline_s = time.monotonic() + PATIENCE_S
        self._launch()
        while not self._answers():
            assert time.monotonic() < deadline_s, (self.directory / "log").read_text()
            time.sleep(0.05)
            if self._process is not None and self._process.poll() is not None:
                self._launch()

    def _launch(self) -> None:
        with (self.directory / "log").open("ab") as log:
            where = ["-p", str(self.port), "-c", f"listen_addresses={self._address}"]
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, "-k", self.directory, *where],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                **self._as,
            )

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """kill -9: its other processes find out by themselves."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def server(address: str = "") -> Iterator[Postgres]:
    """A server that is gone afterwards, and its files with it. ``address``: one that Java can reach
    too.
    """
    directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-", dir="/tmp"))
    made = Postgres(directory, address)
    try:
        made.make()
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)

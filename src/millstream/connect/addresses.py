"""The grammar of ``FROM`` and ``TO`` of ``millstream connect``. Pure: nothing is opened.

    topic:orders                            a topic of the cluster that --bootstrap names
    files:incoming?format=csv&header=false  a directory into which files are moved
    parquet:lake/orders                     a directory of Parquet files
    delta:lake/orders                       a Delta table
    sqlite:///shop.db#orders                a table of SQLite (three slashes and a relative path,
                                            or four and an absolute one)
    postgresql://user@host:5432/shop#orders a table of PostgreSQL; #schema.table

Options of the source or target follow ``?``. In a URL of PostgreSQL these belong to libpq, so that
any of its URLs works. Options of the connector follow the table there:
``postgresql://host/shop?sslmode=require#orders?by=id``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from millstream.client.errors import ClientError
from millstream.connect.databases import registry
from millstream.connect.databases.registry import DatabaseKind
from millstream.pipelines.errors import nearest

TOPIC, FILES, PARQUET, DELTA = "topic", "files", "parquet", "delta"
KINDS = {
    TOPIC: "topic:NAME",
    FILES: "files:DIRECTORY?format=csv|json|parquet",
    PARQUET: "parquet:DIRECTORY",
    DELTA: "delta:DIRECTORY",
    **{kind.scheme: kind.form for kind in registry.KINDS},
}
# A Delta table cannot be read as a stream, and files are written as Parquet or Delta.
SOURCES = tuple(form for kind, form in KINDS.items() if kind != DELTA)
TARGETS = tuple(form for kind, form in KINDS.items() if kind != FILES)
_SECRETS = re.compile(r"(?i)\b(password|sslpassword)=[^&\s]*")


class AddressError(ClientError):
    """An address that cannot be parsed."""


@dataclass(frozen=True)
class Address:
    """A source or target: its kind, its place and its options.

    The place is a topic, a directory or the URL of a database.
    """

    kind: str
    place: str
    table: str | None = None
    cluster: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_database(self) -> bool:
        return registry.find(self.kind) is not None

    def __str__(self) -> str:
        """Return the address without passwords."""
        if self.is_database:
            return f"{without_password(self.place)}#{self.table}"
        return f"{self.kind}:{self.place}" + (f"@{self.cluster}" if self.cluster else "")


def parse_address(text: str) -> Address:
    """Parse an address; AddressError shows the expected forms."""
    scheme, colon, rest = text.partition(":")
    kind = registry.ALIASES.get(scheme, scheme)
    if not colon or kind not in KINDS:
        suggestion = nearest(scheme, [*KINDS, *registry.ALIASES]) if colon else ""
        prefix = f"{suggestion} " if suggestion.startswith("did you mean") else ""
        forms = ", ".join(KINDS.values())
        raise AddressError(f"{text!r} is not an address", hint=f"{prefix}addresses are {forms}")
    database = registry.find(kind)
    if database is not None:
        return _database(database, text)
    return _plain(kind, rest)


def without_password(url: str) -> str:
    """Return a URL that can be shown and logged."""
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if at and ":" in credentials:
        parts = parts._replace(netloc=f"{credentials.partition(':')[0]}@{host}")
    return _SECRETS.sub(r"\1=***", _unsplit(parts))


def _plain(kind: str, rest: str) -> Address:
    place, _, query = rest.partition("?")
    cluster = None
    if kind == TOPIC:
        place, at, cluster = place.partition("@")
        if at and not re.fullmatch(r"[^,:@]+:\d+(,[^,:@]+:\d+)*", cluster):
            raise _wrong(kind, f"{cluster!r} is not HOST:PORT")
    else:
        place = place.removeprefix("//")
    if not place:
        raise _wrong(kind, "the name is missing")
    return Address(kind, place, cluster=cluster or None, options=_options(kind, query))


def _database(database: DatabaseKind, text: str) -> Address:
    kind = database.scheme
    url, _, fragment = text.partition("#")
    table, _, query = unquote(fragment).partition("?")
    if not table:
        raise _wrong(kind, "the table is missing")
    parts = urlsplit(url)
    options = _options(kind, query)
    if database.is_file:
        options = {**_options(kind, parts.query), **options}
        if parts.netloc or len(parts.path) < 2:
            raise _wrong(
                kind,
                "the file is missing; write three slashes and a relative path, or four and an absolute one",
            )
        return Address(kind, f"{kind}://{parts.path}", table, options=options)
    return Address(kind, _unsplit(parts._replace(scheme=kind, fragment="")), table, options=options)


def names_file(url: str) -> bool:
    """Return whether a URL names the file of a database, not a server."""
    database = registry.find(url)
    return database is not None and database.is_file


def file_path(url: str) -> str:
    """Return the file of a URL; ``sqlite:///a.db`` is relative, ``sqlite:////a.db`` absolute."""
    parts = urlsplit(url)
    if not names_file(url) or parts.netloc or len(parts.path) < 2:
        forms = " or ".join(kind.url_form for kind in registry.KINDS if kind.is_file)
        raise AddressError(f"{url!r} does not name a file", hint=f"the address is {forms}")
    return unquote(parts.path[1:])


def _unsplit(parts: SplitResult) -> str:
    """Join a URL; urlunsplit loses slashes if it has no host."""
    rest = parts._replace(scheme="", netloc="", path="")
    return f"{parts.scheme}://{parts.netloc}{parts.path}{urlunsplit(rest)}"


def _options(kind: str, query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _wrong(
            kind, f"options {query!r} cannot be parsed; write ?name=value&name=value"
        ) from None


def _wrong(kind: str, problem: str) -> AddressError:
    return AddressError(f"{kind}: {problem}", hint=f"the address is {KINDS[kind]}")

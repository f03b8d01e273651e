"""What ``FROM`` and ``TO`` of ``millstream connect`` mean: one grammar for all ends. Pure: nothing is opened.

    topic:orders                            a topic of the cluster that --bootstrap names
    files:incoming?format=csv&header=false  a directory into which files are moved
    parquet:lake/orders                     a directory of Parquet files
    delta:lake/orders                       a Delta table
    sqlite:///shop.db#orders                a table of SQLite; three slashes and a relative path, four and an absolute one
    postgresql://user@host:5432/shop#orders a table of PostgreSQL; #schema.table

What follows ``?`` are options of that end. In a URL of PostgreSQL they belong to libpq, so that any URL of its own works; options of the
end come behind the table there: ``postgresql://host/shop?sslmode=require#orders?by=id``.
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
    """An address that cannot be read."""


@dataclass(frozen=True)
class Address:
    """One end: its kind, where it is (a topic, a directory, the URL of a database), and what else was said."""

    kind: str
    place: str
    table: str | None = None
    cluster: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_database(self) -> bool:
        return registry.find(self.kind) is not None

    def __str__(self) -> str:
        """As it can be shown: without passwords."""
        if self.is_database:
            return f"{without_password(self.place)}#{self.table}"
        return f"{self.kind}:{self.place}" + (f"@{self.cluster}" if self.cluster else "")


def parse_address(text: str) -> Address:
    """An address as a user writes it; AddressError says what it should look like."""
    scheme, colon, rest = text.partition(":")
    kind = registry.ALIASES.get(scheme, scheme)
    if not colon or kind not in KINDS:
        close = nearest(scheme, [*KINDS, *registry.ALIASES]) if colon else ""
        did = f"{close} " if close.startswith("did you mean") else ""
        raise AddressError(f"{text!r} is no address", hint=f"{did}addresses are {', '.join(KINDS.values())}")
    database = registry.find(kind)
    if database is not None:
        return _database(database, text)
    return _plain(kind, rest)


def without_password(url: str) -> str:
    """A URL as it can be shown and logged."""
    parts = urlsplit(url)
    before, at, host = parts.netloc.rpartition("@")
    if at and ":" in before:
        parts = parts._replace(netloc=f"{before.partition(':')[0]}@{host}")
    return _SECRETS.sub(r"\1=***", _unsplit(parts))


def _plain(kind: str, rest: str) -> Address:
    place, _, query = rest.partition("?")
    cluster = None
    if kind == TOPIC:
        place, at, cluster = place.partition("@")
        if at and not re.fullmatch(r"[^,:@]+:\d+(,[^,:@]+:\d+)*", cluster):
            raise _wrong(kind, f"{cluster!r} is no HOST:PORT")
    else:
        place = place.removeprefix("//")
    if not place:
        raise _wrong(kind, "nothing is named")
    return Address(kind, place, cluster=cluster or None, options=_options(kind, query))


def _database(database: DatabaseKind, text: str) -> Address:
    kind = database.scheme
    url, _, fragment = text.partition("#")
    table, _, query = unquote(fragment).partition("?")
    if not table:
        raise _wrong(kind, "no table is named")
    parts = urlsplit(url)
    options = _options(kind, query)
    if database.is_file:
        options = {**_options(kind, parts.query), **options}
        if parts.netloc or len(parts.path) < 2:
            raise _wrong(
                kind, "no file is named; three slashes and a relative path, four and an absolute one"
            )
        return Address(kind, f"{kind}://{parts.path}", table, options=options)
    return Address(kind, _unsplit(parts._replace(scheme=kind, fragment="")), table, options=options)


def names_file(url: str) -> bool:
    """Whether a URL names the file of a database, not a server."""
    database = registry.find(url)
    return database is not None and database.is_file


def file_path(url: str) -> str:
    """Return the file of a URL: ``sqlite:///shop.db`` is relative, ``sqlite:////data/shop.db`` is not."""
    parts = urlsplit(url)
    if not names_file(url) or parts.netloc or len(parts.path) < 2:
        forms = " or ".join(kind.url_form for kind in registry.KINDS if kind.is_file)
        raise AddressError(f"{url!r} does not name a file", hint=f"the address is {forms}")
    return unquote(parts.path[1:])


def _unsplit(parts: SplitResult) -> str:
    """urlunsplit, which loses slashes where there is no host."""
    behind = parts._replace(scheme="", netloc="", path="")
    return f"{parts.scheme}://{parts.netloc}{parts.path}{urlunsplit(behind)}"


def _options(kind: str, query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _wrong(kind, f"{query!r} are no options; write ?name=value&name=value") from None


def _wrong(kind: str, what: str) -> AddressError:
    return AddressError(f"{kind}: {what}", hint=f"the address is {KINDS[kind]}")

"""The topics that a mirror copies, their names in the target, and the prevention of loops. Pure.

There are two policies. ``prefix`` puts the name of the source cluster before the topic: ``orders``
of ``east`` is ``east.orders`` in ``west``. MirrorMaker's DefaultReplicationPolicy does the same
(KIP-382). A copy is recognized by its name, and topics with the prefix of the target are not
copied. ``identity`` keeps the names, so that both clusters write to one topic. A copy is then
recognized by its header.

Both policies add the header ``millstream.mirror`` to every copy: the cluster, topic, partition and
offset that the record was copied from. It includes the id of the topic, since offsets start over if
a topic is recreated under its name. The header is the exact map between the offsets of the two
clusters. It survives compaction and retention on either side, and needs no other state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from millstream.client.errors import ClientError

HEADER = "millstream.mirror"
SEPARATOR = "."
INTERNAL = "__"
MAX_NAME_LENGTH = 249
"""The limit for names of topics in Kafka."""

Naming = Literal["prefix", "identity"]
NAMINGS: tuple[Naming, ...] = ("prefix", "identity")

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\Z")


class Origin(NamedTuple):
    """The record that a copy was made from.

    ``cluster`` is the cluster id; ``topic_id`` is empty if the cluster has no topic ids.
    """

    cluster: str
    topic: str
    partition: int
    offset: int
    topic_id: str = ""

    def encode(self) -> bytes:
        place = f"{self.cluster}/{self.topic}/{self.partition}/{self.offset}"
        return (f"{place}/{self.topic_id}" if self.topic_id else place).encode()

    @classmethod
    def parse(cls, value: bytes | None) -> Origin | None:
        """Parse a header; return None if no mirror wrote it."""
        try:
            cluster, topic, partition, offset, *more = (value or b"").decode().split("/")
            (topic_id,) = more or [""]
            return cls(cluster, topic, int(partition), int(offset), topic_id)
        except ValueError:
            return None


def check_cluster_name(name: str) -> str:
    """Reject names that cannot be the prefix of a topic, which ends at the first dot."""
    if not _CLUSTER_NAME.match(name):
        raise ClientError(
            f"{name!r} cannot be the name of a cluster",
            hint="use letters, digits, dashes and underscores, for example east",
        )
    return name


def name_of_address(bootstrap: str) -> str:
    """Return the default name of a cluster: its first address."""
    first = bootstrap.split(",")[0].rpartition("://")[2]
    return re.sub(r"[^A-Za-z0-9_]+", "-", first).strip("-")[:60]


@dataclass(frozen=True)
class Selection:
    """The topics that one direction of a mirror copies.

    Entries are names, or regular expressions that match whole names.
    """

    source: str
    target: str
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    naming: Naming = "prefix"

    def __post_init__(self) -> None:
        check_patterns(self.topics, "topics")
        check_patterns(self.exclude, "exclude")

    @property
    def pattern(self) -> str:
        """The regular expression for topics of the source.

        It excludes topics whose name would be too long in the target.
        """
        limit = MAX_NAME_LENGTH - len(self.target_topic(""))
        return f"(?!.{{{limit + 1}}}){self._selected}"

    @property
    def _selected(self) -> str:
        """Never select internal topics, nor copies from the target by their name."""
        parts = [f"(?!{INTERNAL})"]
        if self.naming == "prefix":
            parts.append(rf"(?!(?:.*\.)?{re.escape(self.target)}\.)")
        if self.exclude:
            parts.append(f"(?!(?:{_any_of(self.exclude)})$)")
        return "".join(parts) + f"(?:{_any_of(self.topics)})"

    def copies(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None

    def too_long(self, topic: str) -> bool:
        """Return whether a topic is excluded only because the name of its copy is too long."""
        return re.fullmatch(self._selected, topic) is not None and not self.copies(topic)

    def target_topic(self, topic: str) -> str:
        """Return the name of the copy of a topic."""
        return topic if self.naming == "identity" else f"{self.source}{SEPARATOR}{topic}"

    def original_topic(self, topic: str) -> str | None:
        """Return the topic of the target that a topic of the source is a copy of, by its name."""
        if self.naming == "identity":
            return topic if self.copies(topic) else None
        prefix = f"{self.target}{SEPARATOR}"
        return topic.removeprefix(prefix) if topic.startswith(prefix) else None


def literal(entry: str) -> str:
    """Return an entry as a regular expression: dots in a plain name are literal."""
    return re.escape(entry) if _PLAIN.match(entry) else entry


def _any_of(entries: Iterable[str]) -> str:
    return "|".join(f"(?:{literal(entry)})" for entry in entries)


def matches(entries: Sequence[str], name: str) -> bool:
    """Return whether an entry matches a whole name."""
    return bool(entries) and re.fullmatch(_any_of(entries), name) is not None


def check_patterns(entries: Iterable[str], option: str) -> None:
    for entry in entries:
        try:
            re.compile(literal(entry))
        except re.error as error:
            raise ClientError(
                f"{entry!r} in {option} is not a regular expression: {error}",
                hint="for example orders,pay.*",
            ) from None


def words(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the entries of ``orders,pay.*``."""
    entries = text.split(",") if isinstance(text, str) else text
    return tuple(entry.strip() for entry in entries if entry.strip())

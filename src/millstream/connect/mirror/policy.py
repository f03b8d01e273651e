"""What a mirror copies and what the copies are called: names of topics, where a copy came from, and how loops are kept out. Pure.

Two policies. ``prefix`` puts the name of the source cluster before the topic (``orders`` of ``east`` is ``east.orders`` in ``west``), as MirrorMaker's
DefaultReplicationPolicy does (KIP-382): a copy is known by its name, and what carries the name of the cluster it would go to is not copied. ``identity``
leaves names as they are, so that both clusters write to one topic; a copy is then known by its header.

The header (``millstream.mirror``) is added to every copy, under both policies: the cluster, topic, partition and offset that the record was copied from, and
the id of the topic, since one that is made again under its old name counts its offsets anew.
It is the exact map from offsets of one cluster to offsets of the other, which survives compaction and retention on either side and needs no state beside.
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
LONGEST_NAME = 249
"""Of a topic, in every Kafka."""

Naming = Literal["prefix", "identity"]
NAMINGS: tuple[Naming, ...] = ("prefix", "identity")

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\Z")


class Origin(NamedTuple):
    """Where a copy was copied from; ``cluster`` is the id that the cluster gave itself, ``topic_id`` is empty where the cluster gives none."""

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
        """None for what no mirror wrote."""
        try:
            cluster, topic, partition, offset, *more = (value or b"").decode().split("/")
            (topic_id,) = more or [""]
            return cls(cluster, topic, int(partition), int(offset), topic_id)
        except ValueError:
            return None


def check_cluster_name(name: str) -> str:
    """Names of clusters become parts of names of topics, and end at the first dot."""
    if not _CLUSTER_NAME.match(name):
        raise ClientError(
            f"{name!r} cannot be the name of a cluster",
            hint="use letters, digits, dashes and underscores, for example east",
        )
    return name


def name_of_address(bootstrap: str) -> str:
    """The name of a cluster that was given none: its first address."""
    first = bootstrap.split(",")[0].rpartition("://")[2]
    return re.sub(r"[^A-Za-z0-9_]+", "-", first).strip("-")[:60]


@dataclass(frozen=True)
class Selection:
    """The topics that one direction of a mirror copies. Entries are names or regular expressions over whole names."""

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
        """One regular expression for the source. What could not have its name in the target is not copied."""
        longest = LONGEST_NAME - len(self.target_topic(""))
        return f"(?!.{{{longest + 1}}}){self._wanted}"

    @property
    def _wanted(self) -> str:
        """Internal topics are never copied, nor is what came from the target by name."""
        out = [f"(?!{INTERNAL})"]
        if self.naming == "prefix":
            out.append(rf"(?!(?:.*\.)?{re.escape(self.target)}\.)")
        if self.exclude:
            out.append(f"(?!(?:{_any_of(self.exclude)})$)")
        return "".join(out) + f"(?:{_any_of(self.topics)})"

    def copies(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None

    def too_long(self, topic: str) -> bool:
        """Whether a topic is left out only because of the name that its copy would have."""
        return re.fullmatch(self._wanted, topic) is not None and not self.copies(topic)

    def target_topic(self, topic: str) -> str:
        """What the copy of a topic is called."""
        return topic if self.naming == "identity" else f"{self.source}{SEPARATOR}{topic}"

    def brought(self, topic: str) -> str | None:
        """The topic of the target whose copy this topic of the source is, when it is one by its name."""
        if self.naming == "identity":
            return topic if self.copies(topic) else None
        prefix = f"{self.target}{SEPARATOR}"
        return topic.removeprefix(prefix) if topic.startswith(prefix) else None


def literal(entry: str) -> str:
    """An entry as a regular expression: a name with dots in it means these dots."""
    return re.escape(entry) if _PLAIN.match(entry) else entry


def _any_of(entries: Iterable[str]) -> str:
    return "|".join(f"(?:{literal(one)})" for one in entries)


def matches(entries: Sequence[str], name: str) -> bool:
    """Whether a whole name is one of the entries."""
    return bool(entries) and re.fullmatch(_any_of(entries), name) is not None


def check_patterns(entries: Iterable[str], what: str) -> None:
    for one in entries:
        try:
            re.compile(literal(one))
        except re.error as error:
            raise ClientError(
                f"{one!r} in {what} is no regular expression: {error}", hint="for example orders,pay.*"
            ) from None


def words(text: str | Iterable[str]) -> tuple[str, ...]:
    """``orders,pay.*`` as entries."""
    given = text.split(",") if isinstance(text, str) else text
    return tuple(one.strip() for one in given if one.strip())

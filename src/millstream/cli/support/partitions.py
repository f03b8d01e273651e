"""Partitions on the command line: ``orders`` is a topic, ``orders:0,2`` two of its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import complete_topics

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.core.types import TopicPartition

TopicOptions = Annotated[
    list[str] | None,
    declare.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P]",
        help="A topic, or some of its partitions (repeatable).",
        autocompletion=complete_topics,
    ),
]


def parse_partitions(text: str) -> tuple[str, list[int] | None]:
    """Return the topic and the partition numbers, None for all. A topic name has no colon.

    Raise a usage error (exit 2) for anything else.
    """
    topic, colon, numbers = text.partition(":")
    words = numbers.split(",")
    if not topic or (colon and not all(word.strip().isdigit() for word in words)):
        raise declare.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1")
    return topic, [int(word) for word in words] if colon else None


def partitions_of(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """Return the named partitions. Raise ClientError if a topic or partition does not exist."""
    parsed = [parse_partitions(word) for word in words]
    partitions = [
        partition for topic, only in parsed for partition in admin.topics.partitions(topic, only)
    ]
    return sorted(set(partitions))

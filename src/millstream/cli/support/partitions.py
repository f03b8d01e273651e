"""Partitions on the command line: ``orders`` is a whole topic, ``orders:0,2`` two partitions of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.support.options import complete_topics

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.core.types import TopicPartition

TopicOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P]",
        help="A topic, or partitions of it (repeat it).",
        autocompletion=complete_topics,
    ),
]


def parse_partitions(text: str) -> tuple[str, list[int] | None]:
    """The topic and the numbers, None for all of them; misuse (exit 2) for anything else. A topic's name has no colon."""
    topic, colon, numbers = text.partition(":")
    words = numbers.split(",")
    if not topic or (colon and not all(word.strip().isdigit() for word in words)):
        raise typer.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1")
    return topic, [int(word) for word in words] if colon else None


def partitions_of(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """The partitions that these words name; a topic or partition that does not exist is told."""
    parsed = [parse_partitions(word) for word in words]
    found = [one for topic, only in parsed for one in admin.topics.partitions(topic, only)]
    return sorted(set(found))

"""Options that several commands share, declared once, and the parsing of NAME=VALUE pairs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from millstream.cli.support.output import note
from millstream.client.connection import DEFAULT_BOOTSTRAP

COMPLETION_TIMEOUT_S = 1.0


def noun(help: str, **more: Any) -> typer.Typer:
    """The commands about one thing; called without one of them it says which there are."""
    options = {"no_args_is_help": True} | more
    return typer.Typer(add_completion=False, rich_markup_mode=None, help=help, **options)


class Format(StrEnum):
    """How a listing is printed."""

    table = "table"
    json = "json"


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell; none, quickly, when no broker answers."""
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    try:
        with Admin(ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, timeout_s=COMPLETION_TIMEOUT_S) as admin:
            return [name for name in admin.topics.names() if name.startswith(incomplete)]
    except ClientError:
        return []


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="MILLSTREAM_BOOTSTRAP", metavar="HOST:PORT", help="Address of a broker."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.1, help="How long to wait for an answer, fail-overs included."
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print.")]
TopicName = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=complete_topics)]
TopicNames = Annotated[list[str], typer.Argument(help="Names of topics.", autocompletion=complete_topics)]
ClientOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--client-option", "-X", metavar="NAME=VALUE", help="A librdkafka property, passed as it is."
    ),
]
# Of everything that runs on Spark.
Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: local[*], spark://HOST:PORT, yarn, k8s://..."
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Where checkpoints are. [default: ./millstream-checkpoints]"
    ),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark.")]
Once = Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")]
ResetProgress = Annotated[
    bool,
    typer.Option(
        "--reset-progress", help="The checkpoint is new on purpose: write again what it brings again."
    ),
]
StopTimeout = Annotated[
    float,
    typer.Option("--stop-timeout", metavar="SECONDS", min=0, help="How long a batch may finish at the end."),
]


def note_local_time(text: str) -> None:
    """Say in which zone a time was read that has none."""
    from millstream.client.consuming.positions import local_moment

    if (moment := local_moment(text)) is not None:
        utc = moment.replace(tzinfo=None).isoformat()
        note(f"{text} is taken as local time, {moment.isoformat()}; for UTC write {utc}Z")


def pair_list(words: list[str] | None, option: str) -> list[tuple[str, str]]:
    """NAME=VALUE words in their order, repeated names included; misuse (exit 2) for a word that is none."""
    found = []
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint=option)
        found.append((name.strip(), value))
    return found


def pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE words as a mapping, of which the last one counts where a name is repeated."""
    return dict(pair_list(words, option))

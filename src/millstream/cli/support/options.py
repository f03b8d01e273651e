"""Options that several commands share, and the parsing of NAME=VALUE pairs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from millstream.cli.support import declare
from millstream.cli.support.output import note
from millstream.client.connection import DEFAULT_BOOTSTRAP

COMPLETION_TIMEOUT_S = 1.0


def noun(help: str, **more: Any) -> declare.Application:
    """Return the application of a noun. Without a verb it prints its help."""
    options = {"no_args_is_help": True} | more
    return declare.Application(help=help, **options)


class Format(StrEnum):
    """The output format of a listing."""

    table = "table"
    json = "json"


def complete_topics(ctx: declare.Context, incomplete: str) -> list[str]:
    """Return topic names for shell completion, or none soon if no broker answers."""
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    try:
        with Admin(
            ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, timeout_s=COMPLETION_TIMEOUT_S
        ) as admin:
            return [name for name in admin.topics.names() if name.startswith(incomplete)]
    except ClientError:
        return []


Bootstrap = Annotated[
    str,
    declare.Option(
        "--bootstrap",
        "-b",
        envvar="MILLSTREAM_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Address of a broker.",
    ),
]
Timeout = Annotated[
    float,
    declare.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="How long to wait for a response, including fail-over.",
    ),
]
OutputFormat = Annotated[Format, declare.Option("--format", help="Output format.")]
TopicName = Annotated[
    str, declare.Argument(help="Name of the topic.", autocompletion=complete_topics)
]
TopicNames = Annotated[
    list[str], declare.Argument(help="Names of topics.", autocompletion=complete_topics)
]
ClientOptions = Annotated[
    list[str] | None,
    declare.Option(
        "--client-option",
        "-X",
        metavar="NAME=VALUE",
        help="A librdkafka property, passed on unchanged.",
    ),
]
# Options of every command that runs on Spark.
Master = Annotated[
    str,
    declare.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], spark://HOST:PORT, yarn, k8s://...",
    ),
]
Checkpoint = Annotated[
    str | None,
    declare.Option(
        "--checkpoint",
        metavar="DIR",
        help="Directory of the checkpoints. [default: ./millstream-checkpoints]",
    ),
]
Conf = Annotated[
    list[str] | None, declare.Option("--conf", metavar="NAME=VALUE", help="A Spark setting.")
]
Once = Annotated[bool, declare.Option("--once", help="Process the available records, then exit.")]
ResetProgress = Annotated[
    bool,
    declare.Option(
        "--reset-progress", help="Accept a new checkpoint, and write its records again."
    ),
]
StopTimeout = Annotated[
    float,
    declare.Option(
        "--stop-timeout",
        metavar="SECONDS",
        min=0,
        help="How long to wait for running batches at the end.",
    ),
]


def note_local_time(text: str) -> None:
    """Tell the user that a time without a zone was taken as local time."""
    from millstream.client.consuming.positions import local_moment

    if (moment := local_moment(text)) is not None:
        utc = moment.replace(tzinfo=None).isoformat()
        note(f"using local time for {text}: {moment.isoformat()}; for UTC write {utc}Z")


def pair_list(words: list[str] | None, option: str) -> list[tuple[str, str]]:
    """Return NAME=VALUE words in order, repeated names included.

    Raise a usage error (exit 2) for any other word.
    """
    parsed = []
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise declare.BadParameter(f"{word!r} is not NAME=VALUE", param_hint=option)
        parsed.append((name.strip(), value))
    return parsed


def pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping. The last value of a repeated name wins."""
    return dict(pair_list(words, option))

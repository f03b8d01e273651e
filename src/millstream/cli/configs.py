"""``millstream configs``: the settings of topics, brokers, groups and client metrics, where each value comes from, and how to change it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.support.options import (
    COMPLETION_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    Timeout,
    noun,
    pairs,
)
from millstream.cli.support.output import note, print_json, print_table
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from millstream.client.admin.configs import Config

app = noun("Settings of topics, brokers, groups and client metrics.")


class Kind(StrEnum):
    topic = "topic"
    broker = "broker"
    group = "group"
    client_metrics = "client-metrics"


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """What has settings, for the shell; nothing, quickly, when no broker answers."""
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    bootstrap = ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    try:
        with Admin(bootstrap, timeout_s=COMPLETION_TIMEOUT_S) as admin:
            names = admin.configs.names(Kind(ctx.params["kind"]).value)
            return [name for name in names if name.startswith(incomplete)]
    except (ClientError, KeyError, ValueError):
        return []


KindArgument = Annotated[Kind, typer.Argument(help="Whose settings.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="Name of the topic, group or metrics subscription, or node id of the broker.",
        autocompletion=complete_names,
    ),
]
Pairs = list[str] | None


@app.command("list")
def list_names(
    kind: KindArgument,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List what settings can be shown of: all topics or brokers, or the groups or metrics subscriptions that have some."""
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=timeout) as admin:
        found = admin.configs.names(kind.value)
    if format is Format.json:
        print_json(found)
    elif found:
        print("\n".join(found))
    else:
        note(f"no {kind.value} has settings of its own")


@app.command()
def describe(
    kind: KindArgument,
    name: NameArgument,
    all: Annotated[
        bool, typer.Option("--all", help="Also what nobody set, with sources and synonyms.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the settings that are not at their default, and where each was set."""
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=timeout) as admin:
        found = admin.configs.describe(kind.value, name)
    shown = [one for one in found if all or not one.default]
    if format is Format.json:
        print_json([_as_json(one) for one in shown])
    elif all:
        rows = [(one.name, _value(one), one.source, _synonyms(one), one.read_only) for one in shown]
        print_table(("NAME", "VALUE", "SOURCE", "SYNONYMS", "READ-ONLY"), rows)
    elif shown:
        print_table(("NAME", "VALUE", "SOURCE"), [(one.name, _value(one), one.source) for one in shown])
    else:
        note(f"{kind.value} {name} has only default settings; see them with --all")


@app.command()
def alter(
    kind: KindArgument,
    name: NameArgument,
    set: Annotated[
        Pairs, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Give a setting a value.")
    ] = None,
    delete: Annotated[
        Pairs, typer.Option("--delete", "-d", metavar="NAME", help="Back to the default.")
    ] = None,
    append: Annotated[Pairs, typer.Option("--append", metavar="NAME=VALUE", help="Add to a list.")] = None,
    subtract: Annotated[
        Pairs, typer.Option("--subtract", metavar="NAME=VALUE", help="Take from a list.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check that it would work.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change settings of a topic, a broker, a group or a metrics subscription while it runs; those not named stay as they are."""
    from millstream.client.admin.client import Admin

    changes = {
        "set": pairs(set, "--set"),
        "append": pairs(append, "--append"),
        "subtract": pairs(subtract, "--subtract"),
    }
    named = [one for change in changes.values() for one in change] + list(delete or ())
    if not named:
        raise typer.BadParameter("give --set, --delete, --append or --subtract")
    with Admin(bootstrap, timeout_s=timeout) as admin:
        admin.configs.alter(kind.value, name, delete=delete or (), validate_only=dry_run, **changes)
    if kind is Kind.broker:
        _note_unknown(changes["set"])
    if kind is Kind.topic:
        note_unknown_deletions(delete or ())
    print(f"{'would alter' if dry_run else 'altered'} settings of {kind.value} {name}: {', '.join(named)}")


def _note_unknown(names: Iterable[str]) -> None:
    """Say which names may be misspelt: a broker stores what it does not know, as Kafka does."""
    from millstream.core.broker_settings import BROKER_SETTINGS
    from millstream.core.settings import unknown

    for name in names:
        if name not in BROKER_SETTINGS:
            note(
                f"{unknown(name, BROKER_SETTINGS, 'broker setting')}; it is stored, and has no effect on this version"
            )


def note_unknown_deletions(names: Iterable[str]) -> None:
    """Say which deleted topic settings may be misspelt: a broker accepts any name, as Kafka does."""
    from millstream.core.config import topic_row
    from millstream.core.settings import SettingError

    for name in names:
        try:
            topic_row(name)
        except SettingError as error:
            note(f"{error}; a topic without this setting stays as it is")


def _value(config: Config) -> str | None:
    return "(hidden)" if config.sensitive else config.value


def _synonyms(config: Config) -> str:
    return ", ".join(f"{one.source}:{one.name}={one.value}" for one in config.synonyms)


def _as_json(config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source,
        "default": config.default,
        "read_only": config.read_only,
        "sensitive": config.sensitive,
        "synonyms": [{"name": one.name, "value": one.value, "source": one.source} for one in config.synonyms],
    }

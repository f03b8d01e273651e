"""``millstream configs``: show and change settings of topics, brokers, groups and client metrics.

Each value is shown with its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.support import declare
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


def complete_names(ctx: declare.Context, incomplete: str) -> list[str]:
    """Return resource names for shell completion, or none soon if no broker answers."""
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    bootstrap = ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    try:
        with Admin(bootstrap, timeout_s=COMPLETION_TIMEOUT_S) as admin:
            names = admin.configs.names(Kind(ctx.params["kind"]).value)
            return [name for name in names if name.startswith(incomplete)]
    except (ClientError, KeyError, ValueError):
        return []


KindArgument = Annotated[Kind, declare.Argument(help="Kind of resource.")]
NameArgument = Annotated[
    str,
    declare.Argument(
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
    """List the resources with settings.

    These are all topics or brokers, or the groups or metrics subscriptions with dynamic settings.
    """
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=timeout) as admin:
        names = admin.configs.names(kind.value)
    if format is Format.json:
        print_json(names)
    elif names:
        print("\n".join(names))
    else:
        plural = {Kind.client_metrics: "client metrics subscriptions"}.get(kind, f"{kind.value}s")
        note(f"no {plural} have settings")


@app.command()
def describe(
    kind: KindArgument,
    name: NameArgument,
    all: Annotated[
        bool, declare.Option("--all", help="Include default values, with sources and synonyms.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the settings that differ from their default, and where each was set."""
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=timeout) as admin:
        configs = admin.configs.describe(kind.value, name)
    shown = [config for config in configs if all or not config.default]
    if format is Format.json:
        print_json([_as_json(config) for config in shown])
    elif all:
        rows = [
            (config.name, _value(config), config.source, _synonyms(config), config.read_only)
            for config in shown
        ]
        print_table(("NAME", "VALUE", "SOURCE", "SYNONYMS", "READ-ONLY"), rows)
    elif shown:
        print_table(
            ("NAME", "VALUE", "SOURCE"),
            [(config.name, _value(config), config.source) for config in shown],
        )
    else:
        note(f"{kind.value} {name} has only default settings; show them with --all")


@app.command()
def alter(
    kind: KindArgument,
    name: NameArgument,
    set: Annotated[
        Pairs, declare.Option("--set", "-s", metavar="NAME=VALUE", help="Set a value.")
    ] = None,
    delete: Annotated[
        Pairs, declare.Option("--delete", "-d", metavar="NAME", help="Reset to the default.")
    ] = None,
    append: Annotated[
        Pairs, declare.Option("--append", metavar="NAME=VALUE", help="Add to a list setting.")
    ] = None,
    subtract: Annotated[
        Pairs,
        declare.Option("--subtract", metavar="NAME=VALUE", help="Remove from a list setting."),
    ] = None,
    dry_run: Annotated[
        bool, declare.Option("--dry-run", help="Check the change without making it.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change settings of a topic, broker, group or metrics subscription without a restart.

    Other settings keep their values.
    """
    from millstream.client.admin.client import Admin

    changes = {
        "set": pairs(set, "--set"),
        "append": pairs(append, "--append"),
        "subtract": pairs(subtract, "--subtract"),
    }
    named = [setting for change in changes.values() for setting in change] + list(delete or ())
    if not named:
        raise declare.BadParameter("give --set, --delete, --append or --subtract")
    with Admin(bootstrap, timeout_s=timeout) as admin:
        admin.configs.alter(kind.value, name, delete=delete or (), validate_only=dry_run, **changes)
    if kind is Kind.broker:
        _note_unknown(changes["set"])
    if kind is Kind.topic:
        note_unknown_deletions(delete or ())
    print(
        f"{'would alter' if dry_run else 'altered'} settings of {kind.value} {name}: {', '.join(named)}"
    )


def _note_unknown(names: Iterable[str]) -> None:
    """Report names that may be misspelt: like Kafka, a broker stores unknown settings."""
    from millstream.core.broker_settings import BROKER_SETTINGS
    from millstream.core.settings import unknown

    for name in names:
        if name not in BROKER_SETTINGS:
            note(
                f"{unknown(name, BROKER_SETTINGS, 'broker setting')}; it is stored but has no effect in this version"
            )


def note_unknown_deletions(names: Iterable[str]) -> None:
    """Report deleted settings that may be misspelt: like Kafka, a broker accepts any name."""
    from millstream.core.config import topic_row
    from millstream.core.settings import SettingError

    for name in names:
        try:
            topic_row(name)
        except SettingError as error:
            note(f"{error}; nothing to reset")


def _value(config: Config) -> str | None:
    return "(hidden)" if config.sensitive else config.value


def _synonyms(config: Config) -> str:
    return ", ".join(
        f"{synonym.source}:{synonym.name}={synonym.value}" for synonym in config.synonyms
    )


def _as_json(config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source,
        "default": config.default,
        "read_only": config.read_only,
        "sensitive": config.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in config.synonyms
        ],
    }

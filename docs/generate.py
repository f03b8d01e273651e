"""Write the reference pages: commands, settings, APIs, error codes and modules.

Run by ``make docs``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from millstream.cli.commands import COMMANDS, Command
from millstream.cli.support.declare import ArgumentDeclaration
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.errors import ErrorCode
from millstream.core.group_settings import CLIENT_METRICS_SETTINGS, GROUP_BOUNDS, GROUP_SETTINGS
from millstream.core.kafka_settings import IGNORED, REFUSED
from millstream.core.settings import Setting, Update
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS
from millstream.wire.apis import APIS, NEVER_FLEXIBLE, Api, Pipelining

HERE = Path(__file__).parent / "reference"
SOURCE = Path(__file__).parent.parent / "src" / "millstream"
# One module per API and message, named after it: the page of the APIs lists them.
ONE_PER_API = ("broker/handlers", "wire/messages")


def prose(text: str) -> str:
    """Return a paragraph, wrapped at 100 columns."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def bounds(row: Setting) -> str:
    if row.choices:
        return ", ".join(row.choices)
    low = f">= {row.low:g}" if row.low is not None else ""
    high = f"<= {row.high:g}" if row.high is not None else ""
    return " and ".join(part for part in (low, high) if part)


def default(row: Setting) -> str:
    text = row.text(row.default)
    return f"`{text}`" if text else ""


def settings_page() -> str:
    changes = {Update.READ_ONLY: "", Update.CLUSTER_WIDE: "cluster-wide"}
    served = [row for row in BROKER_SETTINGS.values() if not row.inert]
    inert = [row for row in BROKER_SETTINGS.values() if row.inert]
    topics = [row for row in TOPIC_SETTINGS.values() if not row.internal]
    return "\n".join(
        [
            "# Settings",
            "",
            prose(
                "Names are Kafka's. Set them in a `.properties` file (`--config`) or with "
                "`--set name=value`. If the last column says `cluster-wide`, you can also change "
                "them at run time, for one broker or for all: `millstream configs alter broker 0 "
                "--set log.cleaner.backoff.ms=1000`."
            ),
            "",
            "## Broker",
            "",
            table(
                ("name", "default", "bounds", "description", "dynamic"),
                ((f"`{r.name}`", default(r), bounds(r), r.doc, changes[r.update]) for r in served),
            ),
            "## Topic",
            "",
            table(
                ("name", "default", "bounds", "description", "default from broker setting"),
                (
                    (
                        f"`{r.name}`",
                        default(r),
                        bounds(r),
                        r.doc,
                        ", ".join(f"`{s.name}`" for s in TOPIC_SYNONYMS.get(r.name, ())),
                    )
                    for r in topics
                ),
            ),
            "## Group",
            "",
            prose(
                "Settings of one consumer group: `millstream configs alter group billing --set "
                "consumer.session.timeout.ms=60000`, or `kafka-configs.sh --entity-type groups`. "
                "The broker settings in the last column bound the values."
            ),
            "",
            table(
                ("name", "description", "default from broker setting", "bounds"),
                (
                    (f"`{r.name}`", r.doc, f"`{b.default}`", f"`{b.least}` to `{b.most}`")
                    for r, b in ((row, GROUP_BOUNDS[row.name]) for row in GROUP_SETTINGS.values())
                ),
            ),
            "## Client metrics",
            "",
            prose(
                "Settings of client metrics subscriptions (KIP-714, resource type CLIENT_METRICS). They "
                "are stored and shown, but the broker does not receive metrics and asks no client for "
                "them."
            ),
            "",
            table(
                ("name", "default", "description"),
                ((f"`{r.name}`", default(r), r.doc) for r in CLIENT_METRICS_SETTINGS.values()),
            ),
            "## Accepted without effect",
            "",
            prose(
                "The broker knows every broker setting of Apache Kafka 3.9 and 4.3. These have no "
                "effect here, and the broker logs a line at startup that names those that are set."
            ),
            "",
            prose("No counterpart here: " + ", ".join(f"`{r.name}`" for r in inert) + "."),
            "",
            *(
                line
                for ignored in IGNORED
                for line in (
                    prose(
                        f"For {ignored.reason}: "
                        + ", ".join(f"`{name}`" for name in sorted(ignored.names))
                        + "."
                    ),
                    "",
                )
            ),
            "## Refused",
            "",
            prose(
                "These settings promise something that nothing here provides. The broker does not "
                "start with them, and does not accept them at run time, because ignoring them would "
                "be dangerous. A name that ends with a dot stands for all names that begin so, also "
                "behind `listener.name.NAME.`. Empty values are accepted."
            ),
            "",
            table(
                ("names", "accepted values", "reason"),
                (
                    (
                        ", ".join(f"`{name}`" for name in refused.names),
                        ", ".join(f"`{value}`" for value in sorted(refused.harmless)),
                        refused.reason,
                    )
                    for refused in REFUSED
                ),
            ),
        ]
    )


def apis_page() -> str:
    return "\n".join(
        [
            "# APIs",
            "",
            prose(
                "The APIs that the broker serves. ApiVersions offers all of them to clients, except "
                "those between brokers. Each has one file for its messages, "
                "`wire/messages/<module>.py`, and one for its handler, `broker/handlers/<module>.py`."
            ),
            "",
            prose(
                "Requests of one connection take effect in the order sent. A request whose response is "
                "not ready holds back the requests behind it, unless the last column names requests "
                "that may pass it."
            ),
            "",
            table(
                ("key", "name", "versions", "flexible from", "module", "may be passed by"),
                (
                    (
                        str(a.key),
                        named(a),
                        versions_of(a),
                        flexible(a),
                        f"`{a.module}`",
                        PASSED_BY[a.pipelining],
                    )
                    for a in APIS
                ),
            ),
        ]
    )


PASSED_BY = {
    Pipelining.NONE: "",
    Pipelining.SAME_API: "requests of the same API, once it is decided",
    Pipelining.ANY: "any request, once it is decided",
}


def named(api: Api) -> str:
    return f"{api.name} (between brokers)" if api.internal else api.name


def flexible(api: Api) -> str:
    return "never" if api.flexible_from >= NEVER_FLEXIBLE else str(api.flexible_from)


def versions_of(api: Api) -> str:
    always = f"{api.min_version}-{api.newest}"
    return f"{always}; {api.max_version} with `{api.opened_by}`" if api.opened_by else always


def errors_page() -> str:
    return "\n".join(
        [
            "# Error codes",
            "",
            prose(
                "Kafka's error codes. Clients retry retriable errors by themselves; for example, "
                "NOT_LEADER_OR_FOLLOWER during a fail-over."
            ),
            "",
            table(
                ("code", "name", "retriable", "meaning"),
                (
                    (str(e.value), e.name, "yes" if e.retriable else "", e.message)
                    for e in ErrorCode
                ),
            ),
        ]
    )


# Every command that contacts a cluster takes these; the page explains them once.
EVERYWHERE = {"bootstrap", "timeout"}
PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def one_type(hint: Any) -> Any:
    """Return ``int`` for ``int | None`` and for ``list[int] | None``."""
    args = [part for part in get_args(hint) if part is not type(None)]
    return one_type(args[0]) if args else hint


def placeholder(hint: Any, option: Any) -> str:
    kind = one_type(hint)
    if option.metavar or kind is bool:
        return option.metavar or ""
    return (
        "|".join(kind) if isinstance(kind, type) and issubclass(kind, Enum) else PLACEHOLDERS[kind]
    )


def parameter(name: str, hint: Any, default: object) -> tuple[str, str, str]:
    """Return how a parameter of a command is written, its default, and its meaning."""
    kind, info = get_args(hint)
    several = get_origin(one_of(kind)) is list
    help, _, stated = (info.help or "").partition("[default: ")
    unset = default in (None, inspect.Parameter.empty, False, True, "")
    shown = stated.rstrip("]") or ("" if unset else f"`{default}`")
    if isinstance(info, ArgumentDeclaration):
        return f"`{info.metavar or name.upper() + '...' * several}`", shown, help.strip()
    repeats = several and "(repeatable)" not in help
    return (
        f"`{spelling(name, kind, info, on=default is True)}`",
        shown,
        help.strip() + " Repeatable." * repeats,
    )


def spelling(name: str, kind: Any, option: Any, *, on: bool) -> str:
    """Return ``-p, --partitions N``."""
    names = list(option.names) or [f"--{name.replace('_', '-')}"]
    names.sort(key=lambda word: word.startswith("--"))
    if on:
        names.append(names[-1].replace("--", "--no-", 1))
    return f"{', '.join(names)} {placeholder(kind, option)}".strip()


def one_of(hint: Any) -> Any:
    """Return ``list[int]`` for ``list[int] | None``."""
    args = get_args(hint)
    return args[0] if type(None) in args else hint


def parameters(function: Any) -> list[tuple[str, str, str]]:
    hints = get_type_hints(function, include_extras=True)
    return [
        parameter(name, hints[name], declared.default)
        for name, declared in inspect.signature(function).parameters.items()
        if name not in EVERYWHERE and get_origin(hints[name]) is Annotated
    ]


def command_section(words: list[str], function: Any) -> list[str]:
    text = prose(" ".join((inspect.getdoc(function) or "").split()))
    rows = parameters(function)
    options = [table(("option", "default", ""), rows)] if rows else []
    return [f"{'##' if len(words) == 1 else '###'} {' '.join(words)}", "", text, "", *options]


def noun_section(command: Command) -> list[str]:
    """Return the section of a noun with its verbs, or of a command without verbs."""
    app = import_module(command.module).app
    functions = {verb.name: verb.function for verb in app.commands}
    if not app.help:
        # A command without verbs.
        return command_section([command.name], *functions.values())
    verbs = [
        command_section([command.name, verb], function) for verb, function in functions.items()
    ]
    return [
        f"## {command.name}",
        "",
        prose(" ".join(app.help.split())),
        "",
        *(line for section in verbs for line in section),
    ]


def commands_page() -> str:
    sections = [line for command in COMMANDS for line in noun_section(command)]
    return "\n".join(
        [
            "# Commands",
            "",
            prose(
                "Every command with its options. Commands that contact a cluster also take "
                "`--bootstrap HOST:PORT` (`-b`, `MILLSTREAM_BOOTSTRAP`; default `localhost:9092`) and "
                "`--timeout SECONDS`. [The command line](../cli.md) shows and explains their output."
            ),
            "",
            *sections,
        ]
    )


def first_sentence(module: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def modules_of(directory: Path) -> list[tuple[str, str]]:
    return [
        (f"`{module.stem}`", first_sentence(module))
        for module in sorted(directory.glob("*.py"))
        if module.name not in ("__init__.py", "_version.py")
    ]


def modules_page() -> str:
    sections: list[str] = []
    for directory in sorted(path.parent for path in SOURCE.rglob("__init__.py")):
        name = directory.relative_to(SOURCE).as_posix()
        modules = modules_of(directory)
        if modules and name not in ONE_PER_API:
            heading = "millstream" if name == "." else name
            purpose = first_sentence(directory / "__init__.py")
            sections += [
                f"## {heading}",
                "",
                prose(purpose),
                "",
                table(("module", "subject"), modules),
            ]
    return "\n".join(
        [
            "# Modules",
            "",
            prose(
                "Every module of `src/millstream` with the first sentence of its docstring: search "
                "this page for the subject of a change. `broker/handlers` and `wire/messages` have "
                "one module per API, which [APIs](apis.md) lists."
            ),
            "",
            *sections,
        ]
    )


PAGES = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "apis.md": apis_page,
    "errors.md": errors_page,
    "modules.md": modules_page,
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

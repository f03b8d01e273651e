"""``millstream dlq``: dead letters, which are records that a pipeline could not read: list, show, redrive (shown first)."""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.support.options import (
    Bootstrap,
    Format,
    OutputFormat,
    Timeout,
    complete_topics,
    noun,
)
from millstream.cli.support.output import Progress, note, print_json, print_table
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.dead_letters.letters import DeadLetter, Identity
    from millstream.client.dead_letters.redrive import Newer, Redriven

app = noun("Dead letters: records that a pipeline could not read, with the reason and where they come from.")

PREVIEW_CHARACTERS = 60
REASON_CHARACTERS = 100
NAME_CHARACTERS = 40


class Timestamps(StrEnum):
    """Which times records have that are sent back."""

    original = "original"
    now = "now"


def complete_dead_letters(ctx: typer.Context, incomplete: str) -> list[str]:
    return [name for name in complete_topics(ctx, incomplete) if name.endswith(".dlq")]


DeadTopic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic that was read, or the dead-letter topic itself.",
        autocompletion=complete_dead_letters,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Only those whose reason contains this text."),
]
PipelineName = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="Only those that this pipeline refused.")
]
FlowName = Annotated[
    str | None, typer.Option("--flow", metavar="NAME", help="Only those that a flow of this name refused.")
]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command("list")
def list_topics(
    pipeline: PipelineName = None,
    flow: FlowName = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the dead-letter topics: how many records, how many were not sent back yet, who refused them, why the newest is there."""
    from millstream.client.dead_letters.letters import summaries

    with _admin(bootstrap, timeout) as admin:
        found = summaries(admin, pipeline=pipeline, flow=flow)
    if format is Format.json:
        print_json(
            [
                {
                    "topic": one.topic,
                    "records": one.records,
                    "left": one.left,
                    "refused_by": [
                        {"pipeline": who.pipeline, "flow": who.flow, "records": count}
                        for who, count in one.refused_by.items()
                    ],
                    "newest": None if one.newest is None else _json(one.newest),
                }
                for one in found
            ]
        )
    elif found:
        rows = [
            (
                one.topic,
                one.records,
                one.left,
                one.newest and _time(one.newest.record.timestamp_ms),
                ", ".join(_cut(str(who), NAME_CHARACTERS) or "" for who in one.refused_by if str(who))
                or None,
                one.newest and _cut(one.newest.reason, REASON_CHARACTERS),
            )
            for one in found
        ]
        print_table(("TOPIC", "RECORDS", "LEFT", "NEWEST", "REFUSED BY", "REASON"), rows)
    else:
        note(
            "there are no dead-letter topics (TOPIC.dlq)" + (" with such letters" if pipeline or flow else "")
        )


@app.command()
def show(
    topic: DeadTopic,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the last ones.")] = 20,
    reason: Reason = None,
    pipeline: PipelineName = None,
    flow: FlowName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Those that were sent back already, too.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show dead letters: where each comes from, who refused it and why, and how its value begins."""
    from millstream.client.dead_letters.letters import find, matches, read, redrive_group

    count = 0
    last: deque[DeadLetter] = deque(maxlen=limit)
    with _admin(bootstrap, timeout) as admin:
        name = find(admin, topic)
        committed = {} if everything else admin.groups.committed(redrive_group(name))
        for one in read(bootstrap, name, committed, timeout_s=timeout):
            if matches(one, reason, pipeline=pipeline, flow=flow):
                count += 1
                last.append(one)
    if format is Format.json:
        print_json([_json(one) for one in last])
        return
    if last:
        print_table(
            ("OFFSET", "ORIGIN", "TIME", "REFUSED BY", "REDRIVEN", "REASON", "VALUE"),
            [_row(one) for one in last],
        )
    if count > len(last):
        note(f"the last {len(last):,} of {count:,}; see more with --limit N")
    elif not count:
        note(f"there are none in {name}" + (" that match" if reason or pipeline or flow else ""))


@app.command()
def redrive(
    topic: DeadTopic,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="To this topic, instead of where they came from."),
    ] = None,
    reason: Reason = None,
    pipeline: PipelineName = None,
    flow: FlowName = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None,
    timestamps: Annotated[
        Timestamps | None,
        typer.Option(
            "--timestamps",
            help="The original times, which is the default, or new ones; to be chosen where retention would take the old ones.",
        ),
    ] = None,
    overwrite_newer: Annotated[
        bool,
        typer.Option(
            "--overwrite-newer",
            help="Send also records whose key has a newer record in the topic. Without, their letters stay.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Send also records that an earlier redrive has sent.")
    ] = False,
    run: Annotated[bool, typer.Option("--execute", help="Do it; without, only show it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, which is the default.")] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send the records of dead letters back to where they came from, each exactly once. Shows what would be sent; --execute does it."""
    if run and dry_run:
        raise typer.BadParameter("give --execute or --dry-run, not both")
    from millstream.client.dead_letters.letters import find
    from millstream.client.dead_letters.redrive import Wish, execute, expiry, plan

    with _admin(bootstrap, timeout) as admin:
        name = find(admin, topic)
        wish = Wish(
            name,
            to,
            reason,
            limit,
            timestamps.value if timestamps else None,
            pipeline,
            flow,
            overwrite_newer,
            again,
        )
        progress, looking = Progress(f"redriving {name}"), Progress("looking for newer records")
        try:
            if run:
                done = execute(admin, wish, each=progress.update, looking=looking.update)
            else:
                done = plan(admin, wish, looking=looking.update)
        finally:
            looking.clear()
            progress.clear()
        warning = str(expiry(admin, done)) if done.expired_count else ""
    _show_redriven(name, done, run, format)
    if warning and timestamps is None:
        note(f"--execute will refuse: {warning}")
    elif warning:
        note(f"warning: {warning.partition('; ')[0]}")


def _show_redriven(name: str, done: Redriven, executed: bool, format: Format) -> None:
    if format is Format.json:
        print_json(
            {
                "topic": name,
                "executed": executed,
                "sent": [
                    {
                        "topic": where.topic,
                        "partition": where.partition,
                        "records": count,
                        "expired": done.expired.get(where, 0),
                    }
                    for where, count in done.sent.items()
                ],
                "kept": done.kept,
                "repeated": done.repeated,
                "newer": done.newer,
                "newer_examples": [_newer_json(one) for one in done.examples],
            }
        )
        return
    if done.count:
        rows = [(name, where.topic, where.partition, count) for where, count in done.sent.items()]
        print_table(("FROM", "TO", "PARTITION", "RECORDS"), rows)
    if not done.count:
        note(
            f"nothing in {name} is to be sent back" + (f" ({done.kept:,} do not match)" if done.kept else "")
        )
    elif not executed:
        note("nothing is sent yet; add --execute to do it")
    elif done.kept:
        note(f"{done.kept:,} that do not match are kept, at the end of {name}")
    if done.repeated:
        note(
            f"letters about records that are sent once anyway, or were sent back before: {done.repeated:,}; "
            "--again sends the latter once more"
        )
    if done.newer:
        _note_newer(done)


def _note_newer(done: Redriven) -> None:
    """Say which letters stay, because sending them would put something old over a newer record."""
    note(
        f"letters that stay, because their topic has a newer record of the key: {done.newer:,}; "
        "--overwrite-newer sends them all the same"
    )
    for one in done.examples:
        origin = f"{one.dead_letter}:{one.offset}" if one.origin is None else _place(one.origin)
        newer = "" if one.newer_offset is None else f": newer is {one.newer_partition}:{one.newer_offset}"
        note(f"  {origin}, key {preview(one.key)}{newer}")
    if done.newer > len(done.examples):
        note(f"  and {done.newer - len(done.examples):,} more")


def _newer_json(one: Newer) -> dict[str, Any]:
    return {
        "topic": one.origin and one.origin.topic,
        "partition": one.origin and one.origin.partition,
        "offset": one.origin and one.origin.offset,
        "key": preview(one.key),
        "newer": {"partition": one.newer_partition, "offset": one.newer_offset},
        "dead_letter": {"partition": one.dead_letter.partition, "offset": one.offset},
    }


def _place(one: Identity) -> str:
    return f"{one.topic}-{one.partition}:{one.offset}"


def _row(one: DeadLetter) -> tuple[object, ...]:
    record = one.record
    return (
        f"{record.partition}:{record.offset}",
        one.source if one.topic is None else f"{one.topic}-{one.partition}:{one.offset}",
        _time(record.timestamp_ms if one.timestamp_ms is None else one.timestamp_ms),
        _cut(str(one.refused_by), NAME_CHARACTERS) or None,
        one.redriven,
        _cut(one.reason, REASON_CHARACTERS),
        preview(record.value),
    )


def _json(one: DeadLetter) -> dict[str, Any]:
    from millstream.cli.support.record_json import to_json

    record = json.loads(to_json(one.record._replace(headers=one.headers)))
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
        "timestamp": one.timestamp_ms,
        "reason": one.reason,
        "source": one.source,
        "pipeline": one.pipeline,
        "flow": one.flow,
        "redriven": one.redriven,
        "key": record["key"],
        "value": record["value"],
        "headers": record["headers"],
        "dead_letter": {name: record[name] for name in ("topic", "partition", "offset", "timestamp")},
    }


def preview(value: bytes | None) -> str | None:
    """How a value begins: as text where it is text, as Python would write the bytes where it is not."""
    if value is None:
        return None
    try:
        return _cut(value.decode(), PREVIEW_CHARACTERS)
    except UnicodeDecodeError:
        return _cut(repr(value[:PREVIEW_CHARACTERS]), PREVIEW_CHARACTERS)


def _cut(text: str | None, most: int) -> str | None:
    """One printable line: nothing in a record may move the cursor of whoever looks at it."""
    if text is None:
        return None
    shown = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(timestamp_ms)

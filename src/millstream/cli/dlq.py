"""``millstream dlq``: list, show and redrive dead letters, the records that a pipeline rejected."""

from __future__ import annotations

import json
import shlex
from collections import deque
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.support import declare
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
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.dead_letters.letters import DeadLetter, Identity
    from millstream.client.dead_letters.redrive import Redriven, WithheldLetter

app = noun("Dead letters: records that a pipeline rejected, with the reason and the origin.")

PREVIEW_CHARACTERS = 60
REASON_CHARACTERS = 100
NAME_CHARACTERS = 40


class Timestamps(StrEnum):
    """The timestamps of records that are sent back."""

    original = "original"
    now = "now"


def complete_dead_letters(ctx: declare.Context, incomplete: str) -> list[str]:
    return [name for name in complete_topics(ctx, incomplete) if name.endswith(".dlq")]


DeadTopic = Annotated[
    str,
    declare.Argument(
        metavar="TOPIC",
        help="The source topic, or the dead-letter topic itself.",
        autocompletion=complete_dead_letters,
    ),
]
Reason = Annotated[
    str | None,
    declare.Option(
        "--reason", metavar="TEXT", help="Only dead letters whose reason contains this text."
    ),
]
PipelineName = Annotated[
    str | None,
    declare.Option("--pipeline", metavar="NAME", help="Only dead letters of this pipeline."),
]
FlowName = Annotated[
    str | None,
    declare.Option("--flow", metavar="NAME", help="Only dead letters of flows with this name."),
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
    """List dead-letter topics with their records, records left to redrive, and newest reason."""
    from millstream.client.dead_letters.letters import summaries

    with _admin(bootstrap, timeout) as admin:
        topics = summaries(admin, pipeline=pipeline, flow=flow)
    if format is Format.json:
        print_json(
            [
                {
                    "topic": summary.topic,
                    "records": summary.records,
                    "left": summary.left,
                    "refused_by": [
                        {"pipeline": rejecter.pipeline, "flow": rejecter.flow, "records": count}
                        for rejecter, count in summary.refused_by.items()
                    ],
                    "newest": None if summary.newest is None else _json(summary.newest),
                }
                for summary in topics
            ]
        )
    elif topics:
        rows = [
            (
                summary.topic,
                summary.records,
                summary.left,
                summary.newest and _time(summary.newest.record.timestamp_ms),
                ", ".join(
                    _truncate(str(rejecter), NAME_CHARACTERS) or ""
                    for rejecter in summary.refused_by
                    if str(rejecter)
                )
                or None,
                summary.newest and _truncate(summary.newest.reason, REASON_CHARACTERS),
            )
            for summary in topics
        ]
        print_table(("TOPIC", "RECORDS", "LEFT", "NEWEST", "REFUSED BY", "REASON"), rows)
    else:
        filters = " ".join(_filters(None, pipeline, flow))
        note(f"no dead letters match {filters}" if filters else "no dead-letter topics (TOPIC.dlq)")


@app.command()
def show(
    topic: DeadTopic,
    limit: Annotated[
        int,
        declare.Option(
            "--limit", "-n", min=1, help="Maximum number of records to show, from the end."
        ),
    ] = 20,
    reason: Reason = None,
    pipeline: PipelineName = None,
    flow: FlowName = None,
    everything: Annotated[
        bool, declare.Option("--all", help="Include dead letters that were sent back already.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show dead letters: origin, who rejected each and why, and the start of its value."""
    from millstream.client.dead_letters.letters import find, matches, read, redrive_group

    count = 0
    last: deque[DeadLetter] = deque(maxlen=limit)
    with _admin(bootstrap, timeout) as admin:
        name = find(admin, topic)
        committed = {} if everything else admin.groups.committed(redrive_group(name))
        for letter in read(bootstrap, name, committed, timeout_s=timeout):
            if matches(letter, reason, pipeline=pipeline, flow=flow):
                count += 1
                last.append(letter)
    if format is Format.json:
        print_json([_json(letter) for letter in last])
        return
    if last:
        print_table(
            ("OFFSET", "ORIGIN", "TIME", "REFUSED BY", "REDRIVEN", "REASON", "VALUE"),
            [_row(letter) for letter in last],
        )
    if count > len(last):
        note(f"showing the last {len(last):,} of {count:,}; use --limit N to show more")
    elif not count:
        filters = " ".join(_filters(reason, pipeline, flow))
        note(f"no dead letters in {name}" + (f" match {filters}" if filters else ""))


def _filters(reason: str | None, pipeline: str | None, flow: str | None) -> list[str]:
    """Return the filter options as they are typed."""
    options = {"--reason": reason, "--pipeline": pipeline, "--flow": flow}
    return [f"{option} {shlex.quote(text)}" for option, text in options.items() if text is not None]


@app.command()
def redrive(
    topic: DeadTopic,
    to: Annotated[
        str | None,
        declare.Option(
            "--to", metavar="TOPIC", help="Target topic. [default: the origin of each record]"
        ),
    ] = None,
    reason: Reason = None,
    pipeline: PipelineName = None,
    flow: FlowName = None,
    limit: Annotated[
        int | None,
        declare.Option("--limit", "-n", min=1, help="Maximum number of records to send."),
    ] = None,
    timestamps: Annotated[
        Timestamps | None,
        declare.Option(
            "--timestamps",
            help="Keep the original timestamps (the default) or use new ones. "
            "Required if retention would delete records with the original ones.",
        ),
    ] = None,
    overwrite_newer: Annotated[
        bool,
        declare.Option(
            "--overwrite-newer",
            help="Also send records whose key has a newer record in the topic; they are kept otherwise.",
        ),
    ] = False,
    again: Annotated[
        bool, declare.Option("--again", help="Also send records that an earlier redrive has sent.")
    ] = False,
    run: Annotated[
        bool,
        declare.Option("--execute", help="Send the records; without this they are only listed."),
    ] = False,
    dry_run: Annotated[
        bool, declare.Option("--dry-run", help="Only list the records (the default).")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send dead letters back to their origin, each exactly once.

    Shows the records to send; --execute sends them.
    """
    if run and dry_run:
        raise declare.BadParameter("give --execute or --dry-run, not both")
    from millstream.client.dead_letters.letters import find
    from millstream.client.dead_letters.redrive import RedriveRequest, execute, expiry, plan

    with _admin(bootstrap, timeout) as admin:
        name = find(admin, topic)
        request = RedriveRequest(
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
        progress, newer_progress = (
            Progress(f"redriving {name}"),
            Progress("looking for newer records"),
        )
        try:
            if run:
                result = execute(
                    admin, request, each=progress.update, looking=newer_progress.update
                )
            else:
                result = plan(admin, request, looking=newer_progress.update)
        finally:
            newer_progress.clear()
            progress.clear()
        warning = str(expiry(admin, result)) if result.expired_count else ""
    _show_redriven(name, result, run, format)
    if warning and timestamps is None:
        note(f"--execute will refuse: {warning}")
    elif warning:
        note(f"warning: {warning.partition('; ')[0]}")


def _show_redriven(name: str, result: Redriven, executed: bool, format: Format) -> None:
    if format is Format.json:
        print_json(
            {
                "topic": name,
                "executed": executed,
                "sent": [
                    {
                        "topic": target.topic,
                        "partition": target.partition,
                        "records": count,
                        "expired": result.expired.get(target, 0),
                    }
                    for target, count in result.sent.items()
                ],
                "kept": result.kept,
                "repeated": result.repeated,
                "newer": result.newer,
                "newer_examples": [_newer_json(example) for example in result.examples],
            }
        )
        return
    if result.count:
        rows = [
            (name, target.topic, target.partition, count) for target, count in result.sent.items()
        ]
        print_table(("FROM", "TO", "PARTITION", "RECORDS"), rows)
    if not result.count:
        note(
            f"nothing to send from {name}"
            + (f" ({result.kept:,} do not match)" if result.kept else "")
        )
    elif not executed:
        note("nothing sent yet; add --execute to send")
    elif result.kept:
        kept = counted(result.kept, "record that does not match", "records that do not match")
        note(f"kept {kept}, at the end of {name}")
    if result.repeated:
        note(
            f"skipped {counted(result.repeated, 'repeated dead letter')}: the record is sent only once, or was sent back earlier; "
            "use --again to send those again"
        )
    if result.newer:
        _note_newer(result)


def _note_newer(result: Redriven) -> None:
    """Report the dead letters that are kept, because sending them would override a newer record."""
    note(
        f"kept {counted(result.newer, 'record')} because the topic has a newer record with the same key; "
        "use --overwrite-newer to send them"
    )
    for example in result.examples:
        origin = (
            f"{example.dead_letter}:{example.offset}"
            if example.origin is None
            else _origin(example.origin)
        )
        newer = (
            ""
            if example.newer_offset is None
            else f": newer record at {example.newer_partition}:{example.newer_offset}"
        )
        note(f"  {origin}, key {preview(example.key)}{newer}")
    if result.newer > len(result.examples):
        note(f"  and {result.newer - len(result.examples):,} more")


def _newer_json(newer: WithheldLetter) -> dict[str, Any]:
    return {
        "topic": newer.origin and newer.origin.topic,
        "partition": newer.origin and newer.origin.partition,
        "offset": newer.origin and newer.origin.offset,
        "key": preview(newer.key),
        "newer": {"partition": newer.newer_partition, "offset": newer.newer_offset},
        "dead_letter": {"partition": newer.dead_letter.partition, "offset": newer.offset},
    }


def _origin(identity: Identity) -> str:
    return f"{identity.topic}-{identity.partition}:{identity.offset}"


def _row(letter: DeadLetter) -> tuple[object, ...]:
    record = letter.record
    return (
        f"{record.partition}:{record.offset}",
        letter.source
        if letter.topic is None
        else f"{letter.topic}-{letter.partition}:{letter.offset}",
        _time(record.timestamp_ms if letter.timestamp_ms is None else letter.timestamp_ms),
        _truncate(str(letter.refused_by), NAME_CHARACTERS) or None,
        letter.redriven,
        _truncate(letter.reason, REASON_CHARACTERS),
        preview(record.value),
    )


def _json(letter: DeadLetter) -> dict[str, Any]:
    from millstream.cli.support.record_json import to_json

    record = json.loads(to_json(letter.record._replace(headers=letter.headers)))
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "reason": letter.reason,
        "source": letter.source,
        "pipeline": letter.pipeline,
        "flow": letter.flow,
        "redriven": letter.redriven,
        "key": record["key"],
        "value": record["value"],
        "headers": record["headers"],
        "dead_letter": {
            name: record[name] for name in ("topic", "partition", "offset", "timestamp")
        },
    }


def preview(value: bytes | None) -> str | None:
    """Return the start of a value: as text if it is UTF-8, else as Python's bytes literal."""
    if value is None:
        return None
    try:
        return _truncate(value.decode(), PREVIEW_CHARACTERS)
    except UnicodeDecodeError:
        return _truncate(repr(value[:PREVIEW_CHARACTERS]), PREVIEW_CHARACTERS)


def _truncate(text: str | None, limit: int) -> str | None:
    """Return a printable line: nothing in a record may move the cursor of the terminal."""
    if text is None:
        return None
    shown = "".join(
        letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(timestamp_ms)

"""``millstream groups``: list, describe (lag and lead), reset-offsets, delete, delete-offsets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.support import declare
from millstream.cli.support.options import (
    Bootstrap,
    Format,
    OutputFormat,
    Timeout,
    note_local_time,
    noun,
)
from millstream.cli.support.output import note, print_json, print_table
from millstream.cli.support.partitions import TopicOptions, partitions_of
from millstream.client.admin.states import GroupState, GroupType
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.group_reset import Change, Reset
    from millstream.client.admin.groups import Group, Lag, Member

app = noun("Consumer groups and their offsets.")

COMPLETION_TIMEOUT_S = 1.0
LAG_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "LEAD",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


def complete_groups(ctx: declare.Context, incomplete: str) -> list[str]:
    """Return group names for shell completion, or none soon if no broker answers."""
    try:
        with _admin(
            ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, COMPLETION_TIMEOUT_S
        ) as admin:
            return [name for name in admin.groups.names() if name.startswith(incomplete)]
    except ClientError:
        return []


GroupName = Annotated[
    str, declare.Argument(help="Name of the group.", autocompletion=complete_groups)
]
GroupNames = Annotated[
    list[str], declare.Argument(help="Names of groups.", autocompletion=complete_groups)
]
Yes = Annotated[bool, declare.Option("--yes", "-y", help="Do not ask for confirmation.")]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command("list")
def list_groups(
    state: Annotated[
        list[GroupState] | None,
        declare.Option(
            "--state", case_sensitive=False, help="List only groups in this state (repeatable)."
        ),
    ] = None,
    type: Annotated[
        list[GroupType] | None,
        declare.Option(
            "--type", case_sensitive=False, help="List only groups of this type (repeatable)."
        ),
    ] = None,
    names: Annotated[
        bool, declare.Option("--names", help="Print only names, one per line.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups."""
    with _admin(bootstrap, timeout) as admin:
        groups = admin.groups.list(states=state or (), types=type or ())
    if format is Format.json:
        rows = [
            {
                "group": group.id,
                "type": group.type,
                "protocol": group.protocol_type,
                "state": group.state,
            }
            for group in groups
        ]
        print_json(rows)
    elif names:
        for group in groups:
            print(group.id)
    elif groups:
        table = [
            (group.id, group.type or None, group.protocol_type or None, group.state)
            for group in groups
        ]
        print_table(("GROUP", "TYPE", "PROTOCOL", "STATE"), table)
    elif state or type:
        filters = [f"--state {name}" for name in state or ()] + [
            f"--type {name}" for name in type or ()
        ]
        note(f"no groups match {' '.join(filters)}")
    else:
        note("no groups yet")


@app.command()
def describe(
    groups: GroupNames,
    members: Annotated[
        bool, declare.Option("--members", help="Show the members and their partitions.")
    ] = False,
    state: Annotated[
        bool, declare.Option("--state", help="Show state, type, assignor and coordinator.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the committed offsets of groups: LAG to the log end, LEAD over the log start."""
    if members and state:
        raise declare.BadParameter("give --members or --state, not both")
    with _admin(bootstrap, timeout) as admin:
        described = admin.groups.describe(groups)
        lags = (
            []
            if members or state
            else [(group, lag) for group in described for lag in admin.groups.lags(group)]
        )
    if members:
        _show_members(described, format)
    elif state:
        _show_states(described, format)
    else:
        _show_lags(described, lags, format)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: TopicOptions = None,
    all_topics: Annotated[
        bool, declare.Option("--all-topics", help="Every partition with a committed offset.")
    ] = False,
    to_earliest: Annotated[bool, declare.Option("--to-earliest", help="To the log start.")] = False,
    to_latest: Annotated[bool, declare.Option("--to-latest", help="To the log end.")] = False,
    to_offset: Annotated[
        int | None, declare.Option("--to-offset", min=0, metavar="N", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        declare.Option(
            "--to-datetime",
            metavar="TIME",
            help="To a time: 2026-03-01T12:00:00Z (local time without Z) or @MS.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        declare.Option(
            "--by-duration", metavar="TIME", help="To a time this long ago: 90s, 1h30m, PT1H."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        declare.Option("--shift-by", metavar="N", help="By N records; negative moves back."),
    ] = None,
    run: Annotated[
        bool, declare.Option("--execute", help="Make the change; without this it is only shown.")
    ] = False,
    dry_run: Annotated[
        bool, declare.Option("--dry-run", help="Only show the change (the default).")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set the offsets of a group without members. Shows the change; --execute makes it."""
    if run and dry_run:
        raise declare.BadParameter("give --execute or --dry-run, not both")
    if bool(topic) == all_topics:
        raise declare.BadParameter("give --topic TOPIC[:PARTITION,...] or --all-topics")
    reset = _reset(to_earliest, to_latest, to_offset, to_datetime, by_duration, shift_by)
    if to_datetime is not None:
        note_local_time(to_datetime)
    from millstream.client.admin.group_reset import execute, plan

    with _admin(bootstrap, timeout) as admin:
        changes = plan(admin, group, reset, partitions_of(admin, topic) if topic else None)
        is_new = admin.groups.find(group) is None
        if run:
            execute(admin, group, changes)
    _show_changes(group, changes, run, format)
    if is_new and changes:
        note(f"group {group} {'did' if run else 'does'} not exist {'before' if run else 'yet'}")


@app.command()
def delete(
    groups: GroupNames,
    yes: Yes = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups without members, and their offsets. Asks for confirmation on a terminal.

    Reports the result for each group. Exits with 1 if a group could not be deleted.
    """
    with _admin(bootstrap, timeout) as admin:
        if not yes and sys.stdin.isatty():
            declare.confirm(f"Delete {', '.join(groups)} and all offsets?", abort=True)
        outcomes = admin.groups.delete_each(groups)
    _show_deleted(outcomes, format)
    if any(outcomes.values()):
        raise declare.Exit(1)


@app.command("delete-offsets")
def delete_offsets(
    group: GroupName,
    topic: TopicOptions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the committed offsets of topics that the group is not subscribed to."""
    if not topic:
        raise declare.BadParameter("give --topic TOPIC[:PARTITION,...]")
    with _admin(bootstrap, timeout) as admin:
        admin.groups.get(group)
        committed = admin.groups.committed(group)
        partitions = [
            partition for partition in partitions_of(admin, topic) if partition in committed
        ]
        if partitions and not yes and sys.stdin.isatty():
            declare.confirm(
                f"Delete the offsets of {group} for {', '.join(map(str, partitions))}?", abort=True
            )
        if partitions:
            admin.groups.delete_offsets(group, partitions)
    for partition in partitions:
        print(f"deleted the offset of group {group} for {partition} (was {committed[partition]})")
    if not partitions:
        note(f"group {group} has no committed offsets for {', '.join(topic)}")


def _reset(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
) -> Reset:
    """Return the chosen target of the reset. Raise a usage error unless exactly one is chosen."""
    from millstream.client.admin.group_reset import Reset

    try:
        targets = [
            Reset("earliest") if to_earliest else None,
            Reset("latest") if to_latest else None,
            Reset("offset", to_offset) if to_offset is not None else None,
            Reset.to_datetime(to_datetime) if to_datetime is not None else None,
            Reset.by_duration(by_duration) if by_duration is not None else None,
            Reset("shift", shift_by) if shift_by is not None else None,
        ]
    except ClientError as error:
        raise declare.BadParameter(str(error)) from None
    chosen = [target for target in targets if target is not None]
    if len(chosen) != 1:
        raise declare.BadParameter(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration, --shift-by"
        )
    return chosen[0]


def _show_deleted(outcomes: Mapping[str, ClientError | None], format: Format) -> None:
    if format is Format.json:
        rows = [
            {
                "group": name,
                "deleted": problem is None,
                "error": None if problem is None else str(problem),
            }
            for name, problem in outcomes.items()
        ]
        print_json(rows)
        return
    for name, problem in outcomes.items():
        if problem is None:
            print(f"deleted group {name}")
    sys.stdout.flush()
    for problem in outcomes.values():
        if problem is not None:
            note(f"error: {problem}")


def _show_changes(group: str, changes: Sequence[Change], executed: bool, format: Format) -> None:
    if format is Format.json:
        print_json([_change_json(group, change, executed) for change in changes])
    elif changes:
        rows = [
            (group, *change.partition, change.current, change.new, _remark(change))
            for change in changes
        ]
        columns = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "REMARK")
        print_table(columns, rows)
    note(_summary(group, changes, executed))


def _summary(group: str, changes: Sequence[Change], executed: bool) -> str:
    """Return a sentence about the changes made, or still to be made."""
    changed = sum(change.changes for change in changes)
    if not changes:
        return f"group {group} has no committed offsets: nothing to reset"
    if not changed:
        return f"nothing to change: group {group} already has these offsets"
    if not executed:
        return "nothing changed yet; add --execute to apply"
    unchanged = len(changes) - changed
    rest = f"; {unchanged:,} unchanged" if unchanged else ""
    return f"set {counted(changed, 'offset')} of group {group}{rest}"


def _remark(change: Change) -> str:
    if change.limited:
        return "nearest existing offset"
    return "" if change.changes else "no change"


def _change_json(group: str, change: Change, executed: bool) -> dict[str, Any]:
    return {
        "group": group,
        "topic": change.partition.topic,
        "partition": change.partition.partition,
        "current_offset": change.current,
        "new_offset": change.new,
        "limited": change.limited,
        "changed": executed and change.changes,
    }


def _show_lags(groups: Sequence[Group], lags: Sequence[tuple[Group, Lag]], format: Format) -> None:
    if format is Format.json:
        print_json([_lag_json(group, lag) for group, lag in lags])
        return
    if lags:
        print_table(LAG_COLUMNS, [_lag_row(group, lag) for group, lag in lags])
    for group in groups:
        if all(owner is not group for owner, _ in lags):
            note(
                f"group {group.id} ({group.state}) has no committed offsets and no assigned partitions"
            )
        elif not group.active:
            note(f"group {group.id} has no members")


def _lag_row(group: Group, lag: Lag) -> tuple[object, ...]:
    member = lag.member
    return (
        group.id,
        *lag.partition,
        lag.current,
        lag.end,
        lag.lag,
        lag.lead,
        member.id if member else None,
        member.host if member else None,
        member.client_id if member else None,
    )


def _lag_json(group: Group, lag: Lag) -> dict[str, Any]:
    member = lag.member
    return {
        "group": group.id,
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "current_offset": lag.current,
        "log_start_offset": lag.start,
        "log_end_offset": lag.end,
        "lag": lag.lag,
        "lead": lag.lead,
        "consumer_id": member.id if member else None,
        "host": member.host if member else None,
        "client_id": member.client_id if member else None,
    }


def _show_members(groups: Sequence[Group], format: Format) -> None:
    members = [(group, member) for group in groups for member in group.members]
    if format is Format.json:
        print_json([_member_json(group, member) for group, member in members])
        return
    if members:
        rows = [
            (
                group.id,
                member.id,
                member.host,
                member.client_id,
                len(member.assignment),
                _assignment(member),
            )
            for group, member in members
        ]
        print_table(
            ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"), rows
        )
    for group in groups:
        if not group.active:
            note(f"group {group.id} has no members")


def _assignment(member: Member) -> str:
    topics: dict[str, list[str]] = {}
    for partition in member.assignment:
        topics.setdefault(partition.topic, []).append(str(partition.partition))
    return " ".join(f"{topic}({','.join(rows)})" for topic, rows in topics.items()) or "-"


def _member_json(group: Group, member: Member) -> dict[str, Any]:
    return {
        "group": group.id,
        "consumer_id": member.id,
        "instance_id": member.instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "epoch": member.epoch,
        "assignment": [list(partition) for partition in member.assignment],
        "target_assignment": None
        if member.target is None
        else [list(partition) for partition in member.target],
    }


def _show_states(groups: Sequence[Group], format: Format) -> None:
    if format is Format.json:
        print_json([_state_json(group) for group in groups])
        return
    rows = [
        (
            group.id,
            f"{group.coordinator} ({group.coordinator.node})",
            group.assignor or None,
            group.type,
            group.state,
            len(group.members),
        )
        for group in groups
    ]
    print_table(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "TYPE", "STATE", "#MEMBERS"), rows
    )


def _state_json(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "state": group.state,
        "type": group.type,
        "protocol": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": {
            "id": group.coordinator.node,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "members": len(group.members),
    }

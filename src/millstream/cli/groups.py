"""``millstream groups``: list, describe (lag and lead), reset-offsets (shown first), delete, delete-offsets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Group names for the shell; none, quickly, when no broker answers."""
    try:
        with _admin(ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, COMPLETION_TIMEOUT_S) as admin:
            return [name for name in admin.groups.names() if name.startswith(incomplete)]
    except ClientError:
        return []


GroupName = Annotated[str, typer.Argument(help="Name of the group.", autocompletion=complete_groups)]
GroupNames = Annotated[list[str], typer.Argument(help="Names of groups.", autocompletion=complete_groups)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command("list")
def list_groups(
    state: Annotated[
        list[GroupState] | None,
        typer.Option("--state", case_sensitive=False, help="Only in this state (repeat it)."),
    ] = None,
    type: Annotated[
        list[GroupType] | None,
        typer.Option("--type", case_sensitive=False, help="Only of this type (repeat it)."),
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Only the names, one a line.")] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups."""
    with _admin(bootstrap, timeout) as admin:
        found = admin.groups.list(states=state or (), types=type or ())
    if format is Format.json:
        rows = [
            {"group": one.id, "type": one.type, "protocol": one.protocol_type, "state": one.state}
            for one in found
        ]
        print_json(rows)
    elif names:
        for one in found:
            print(one.id)
    elif found:
        table = [(one.id, one.type or None, one.protocol_type or None, one.state) for one in found]
        print_table(("GROUP", "TYPE", "PROTOCOL", "STATE"), table)
    else:
        note("no group is like that" if state or type else "there are no groups yet")


@app.command()
def describe(
    groups: GroupNames,
    members: Annotated[bool, typer.Option("--members", help="The members and what each has.")] = False,
    state: Annotated[bool, typer.Option("--state", help="State, type, assignor and coordinator.")] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show where groups are in each partition: LAG to the end, LEAD over the first record that is still kept."""
    if members and state:
        raise typer.BadParameter("give --members or --state, not both")
    with _admin(bootstrap, timeout) as admin:
        found = admin.groups.describe(groups)
        lags = [] if members or state else [(one, lag) for one in found for lag in admin.groups.lags(one)]
    if members:
        _show_members(found, format)
    elif state:
        _show_states(found, format)
    else:
        _show_lags(found, lags, format)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: TopicOptions = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition that the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, metavar="N")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="2026-03-01T12:00:00Z, without Z in local time, or @MS."
        ),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="TIME", help="So long ago: 90s, 1h30m, PT1H.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward, or back with a minus.")
    ] = None,
    run: Annotated[bool, typer.Option("--execute", help="Do it; without, only show it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, which is the default.")] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set the offsets of a group that has no members. Shows what would change; --execute does it."""
    if run and dry_run:
        raise typer.BadParameter("give --execute or --dry-run, not both")
    if bool(topic) == all_topics:
        raise typer.BadParameter("give --topic TOPIC[:PARTITION,...] or --all-topics")
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
    """Delete groups, with their offsets, that have no members. Tells of each what became of it; exits 1 where one could not be deleted. Asks first when a person is at the terminal."""
    with _admin(bootstrap, timeout) as admin:
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Delete {', '.join(groups)} with all offsets?", abort=True)
        outcomes = admin.groups.delete_each(groups)
    _show_deleted(outcomes, format)
    if any(outcomes.values()):
        raise typer.Exit(1)


@app.command("delete-offsets")
def delete_offsets(
    group: GroupName,
    topic: TopicOptions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Forget the committed offsets of topics that the group does not read now."""
    if not topic:
        raise typer.BadParameter("give --topic TOPIC[:PARTITION,...]")
    with _admin(bootstrap, timeout) as admin:
        admin.groups.get(group)
        committed = admin.groups.committed(group)
        wanted = [one for one in partitions_of(admin, topic) if one in committed]
        if wanted and not yes and sys.stdin.isatty():
            typer.confirm(f"Forget where {group} is in {', '.join(map(str, wanted))}?", abort=True)
        if wanted:
            admin.groups.delete_offsets(group, wanted)
    for one in wanted:
        print(f"deleted the offset of group {group} in {one} (was {committed[one]})")
    if not wanted:
        note(f"group {group} has no committed offset there")


def _reset(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
) -> Reset:
    """The one place that was named; anything else is misuse."""
    from millstream.client.admin.group_reset import Reset

    try:
        given = [
            Reset("earliest") if to_earliest else None,
            Reset("latest") if to_latest else None,
            Reset("offset", to_offset) if to_offset is not None else None,
            Reset.to_datetime(to_datetime) if to_datetime is not None else None,
            Reset.by_duration(by_duration) if by_duration is not None else None,
            Reset("shift", shift_by) if shift_by is not None else None,
        ]
    except ClientError as error:
        raise typer.BadParameter(str(error)) from None
    wanted = [one for one in given if one is not None]
    if len(wanted) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration, --shift-by"
        )
    return wanted[0]


def _show_deleted(outcomes: Mapping[str, ClientError | None], format: Format) -> None:
    if format is Format.json:
        rows = [
            {"group": name, "deleted": problem is None, "error": None if problem is None else str(problem)}
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
        print_json([_change_json(group, one, executed) for one in changes])
    elif changes:
        rows = [(group, *one.partition, one.current, one.new, _remark(one)) for one in changes]
        columns = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "REMARK")
        print_table(columns, rows)
    note(_summary(group, changes, executed))


def _summary(group: str, changes: Sequence[Change], executed: bool) -> str:
    """One sentence on what was done, or is still to be done."""
    moved = sum(one.changes for one in changes)
    if not changes:
        return f"group {group} has no committed offsets: nothing to reset"
    if not moved:
        return f"nothing to change: group {group} is there already"
    if not executed:
        return "nothing is changed yet; add --execute to do it"
    left = len(changes) - moved
    rest = f", {left:,} {'were' if left > 1 else 'was'} there already" if left else ""
    return f"set {moved:,} offset{'s' if moved > 1 else ''} of group {group}{rest}"


def _remark(change: Change) -> str:
    if change.limited:
        return "the nearest offset there is"
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
        if all(of is not group for of, _ in lags):
            note(f"group {group.id} ({group.state}) has no committed offsets and nothing assigned")
        elif not group.active:
            note(f"group {group.id} has no members")


def _lag_row(group: Group, lag: Lag) -> tuple[object, ...]:
    who = lag.member
    return (
        group.id,
        *lag.partition,
        lag.current,
        lag.end,
        lag.lag,
        lag.lead,
        who.id if who else None,
        who.host if who else None,
        who.client_id if who else None,
    )


def _lag_json(group: Group, lag: Lag) -> dict[str, Any]:
    who = lag.member
    return {
        "group": group.id,
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "current_offset": lag.current,
        "log_start_offset": lag.start,
        "log_end_offset": lag.end,
        "lag": lag.lag,
        "lead": lag.lead,
        "consumer_id": who.id if who else None,
        "host": who.host if who else None,
        "client_id": who.client_id if who else None,
    }


def _show_members(groups: Sequence[Group], format: Format) -> None:
    members = [(group, one) for group in groups for one in group.members]
    if format is Format.json:
        print_json([_member_json(group, one) for group, one in members])
        return
    if members:
        rows = [
            (group.id, one.id, one.host, one.client_id, len(one.assignment), _assignment(one))
            for group, one in members
        ]
        print_table(("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"), rows)
    for group in groups:
        if not group.active:
            note(f"group {group.id} has no members")


def _assignment(member: Member) -> str:
    topics: dict[str, list[str]] = {}
    for one in member.assignment:
        topics.setdefault(one.topic, []).append(str(one.partition))
    return " ".join(f"{topic}({','.join(rows)})" for topic, rows in topics.items()) or "-"


def _member_json(group: Group, member: Member) -> dict[str, Any]:
    return {
        "group": group.id,
        "consumer_id": member.id,
        "instance_id": member.instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "epoch": member.epoch,
        "assignment": [list(one) for one in member.assignment],
        "target_assignment": None if member.target is None else [list(one) for one in member.target],
    }


def _show_states(groups: Sequence[Group], format: Format) -> None:
    if format is Format.json:
        print_json([_state_json(one) for one in groups])
        return
    rows = [
        (
            one.id,
            f"{one.coordinator} ({one.coordinator.node})",
            one.assignor or None,
            one.type,
            one.state,
            len(one.members),
        )
        for one in groups
    ]
    print_table(("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "TYPE", "STATE", "#MEMBERS"), rows)


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

"""``millstream reassign``: plan, execute, status, cancel, unthrottle.

Plans are files in the format of kafka-reassign-partitions.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.core.words import counted, listed
from millstream.local.signals import stopped_by_signals

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.reassignments import Moving

app = noun("Move partitions between brokers while they are in use.")

_POLL_S = 0.5
_STILL_THROTTLED = "the throttle is still set; when the moves are done, remove it with `millstream reassign unthrottle`"
_MAY_BE_THROTTLED = "a throttle may still be set; remove it with `millstream reassign unthrottle`"
_OTHERS_MOVE = (
    "other moves are still in progress and stay throttled; see `millstream reassign status`"
)

Topics = Annotated[
    list[str] | None,
    declare.Option(
        "--topic",
        "-t",
        help="Only this topic (repeatable). [default: all]",
        autocompletion=complete_topics,
    ),
]
Brokers = Annotated[
    str | None, declare.Option("--brokers", metavar="N,N,..", help="Target brokers. [default: all]")
]
Factor = Annotated[
    int | None,
    declare.Option(
        "--replication-factor",
        min=1,
        help="Number of replicas of each partition. [default: unchanged]",
    ),
]
PlanFile = Annotated[Path | None, declare.Argument(help="A plan from `reassign plan`; - is stdin.")]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command()
def plan(
    topic: Topics = None,
    brokers: Brokers = None,
    replication_factor: Factor = None,
    format: OutputFormat = Format.json,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print a plan that spreads partitions evenly over the brokers with as few moves as possible.

    Changes nothing.
    """
    with _admin(bootstrap, timeout) as admin:
        current, planned = _plan(admin, topic, brokers, replication_factor)
    if format is Format.table:
        _print_moves(current, planned)
    else:
        print(_plan_text(planned))
    note(
        f"{len(planned)} of {counted(len(current), 'partition')} to move"
        if planned
        else "nothing to move"
    )


def _plan(
    admin: Admin, topics: Sequence[str] | None, brokers: str | None, factor: int | None
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[TopicPartition, tuple[int, ...]]]:
    from millstream.client.admin.reassignment_plan import moves, spread

    racks = {broker.id: broker.rack for broker in admin.cluster.describe().brokers}
    nodes = _broker_list(brokers) if brokers is not None else sorted(racks)
    if missing := [node for node in nodes if node not in racks]:
        raise ClientError(
            f"broker {missing[0]} does not exist",
            hint=f"the brokers are {', '.join(map(str, sorted(racks)))}",
        )
    # A partition in motion still lists its old replicas, so plan from its target. Ask for the moves
    # first, because they may end before the second request.
    targets = {move.partition: move.target for move in admin.reassignments.moving()}
    current = admin.reassignments.current(topics or None)
    settled = {tp: targets.get(tp, replicas) for tp, replicas in current.items()}
    offline = sorted(set[int]().union(*settled.values()) - racks.keys())
    if offline and brokers is None:
        note(_offline_remark(offline))
    return current, moves(settled, spread(settled, nodes, racks, factor=factor))


def _offline_remark(offline: Sequence[int]) -> str:
    """Return a remark about offline brokers, which the user did not ask to empty."""
    if len(offline) == 1:
        return f"broker {offline[0]} is offline: this plan moves its replicas to other brokers"
    return (
        f"{listed(offline, 'broker')} are offline: this plan moves their replicas to other brokers"
    )


def _broker_list(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise declare.BadParameter(f"{text!r} is not a list of broker ids like 0,1,2")
    return [int(word) for word in words]


def _plan_text(planned: Mapping[TopicPartition, Sequence[int]]) -> str:
    rows = [
        json.dumps({"topic": tp.topic, "partition": tp.partition, "replicas": list(nodes)})
        for tp, nodes in sorted(planned.items())
    ]
    return '{"version": 1, "partitions": [\n  ' + ",\n  ".join(rows) + "\n]}"


def _print_moves(
    current: Mapping[TopicPartition, Sequence[int]], planned: Mapping[TopicPartition, Sequence[int]]
) -> None:
    print_table(
        ("TOPIC", "PARTITION", "NOW", "THEN"),
        [(tp.topic, tp.partition, current.get(tp), nodes) for tp, nodes in sorted(planned.items())],
    )


def _read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        rows = [_planned(row) for row in _rows(json.loads(text))]
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ClientError(
            f"{path} is not a reassignment plan",
            hint="use the output of `millstream reassign plan`, or a file of kafka-reassign-partitions",
        ) from None
    plan = dict(rows)
    if len(plan) < len(rows):
        twice = next(tp for tp, count in Counter(tp for tp, _nodes in rows).items() if count > 1)
        raise ClientError(f"{path} names {twice} more than once")
    return plan


def _rows(plan: Any) -> list[dict[str, Any]]:
    if (
        not isinstance(plan, dict)
        or plan.get("version", 1) != 1
        or not isinstance(plan["partitions"], list)
    ):
        raise ValueError("another version")
    return plan["partitions"]


def _refuse_unknown(
    planned: Mapping[TopicPartition, Sequence[int]], current: Mapping[TopicPartition, Sequence[int]]
) -> None:
    """Refuse a plan with unknown partitions: it is outdated or for another cluster."""
    unknown = next((tp for tp in sorted(planned) if tp not in current), None)
    if unknown is not None:
        count = sum(tp.topic == unknown.topic for tp in current)
        raise ClientError(
            f"topic {unknown.topic!r} has no partition {unknown.partition}",
            hint=f"its partitions are 0 to {count - 1}; make a new plan with `millstream reassign plan`",
        )


def _planned(row: dict[str, Any]) -> tuple[TopicPartition, tuple[int, ...]]:
    """Parse a row strictly, without conversions, because it decides where data goes."""
    topic, index, nodes = row["topic"], row["partition"], row["replicas"]
    if not isinstance(topic, str) or not isinstance(nodes, list):
        raise TypeError(topic)
    if not all(type(number) is int for number in (index, *nodes)):
        raise TypeError(index)
    return TopicPartition(topic, index), tuple(nodes)


@app.command()
def execute(
    file: PlanFile = None,
    topic: Topics = None,
    brokers: Brokers = None,
    replication_factor: Factor = None,
    throttle: Annotated[
        int | None,
        declare.Option(
            "--throttle",
            metavar="BYTES",
            min=1,
            help="Maximum bytes per second of the moves, for each broker.",
        ),
    ] = None,
    wait: Annotated[
        bool, declare.Option(help="Wait until the moves are done, and remove the throttle.")
    ] = True,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Execute the plan in FILE, or the plan that `plan` would make."""
    if file is not None and (topic or brokers or replication_factor):
        raise declare.BadParameter(
            "--topic, --brokers and --replication-factor cannot be used with a plan file"
        )
    with _admin(bootstrap, timeout) as admin:
        if file is not None:
            planned = _read_plan(file)
            current = admin.reassignments.current({tp.topic for tp in planned}) if planned else {}
            _refuse_unknown(planned, current)
        else:
            current, planned = _plan(admin, topic, brokers, replication_factor)
        with stopped_by_signals():
            refused = _execute(admin, planned, throttle, wait=wait) if planned else {}
    if format is Format.json:
        print_json(
            [_row(tp, current.get(tp, ()), nodes, refused.get(tp)) for tp, nodes in planned.items()]
        )
    elif moves := {tp: nodes for tp, nodes in planned.items() if tp not in refused}:
        _print_moves(current, moves)
    elif not refused:
        note("nothing to move")
    for error in refused.values():
        note(str(error))
    if refused:
        raise declare.Exit(1)


def _execute(
    admin: Admin,
    planned: Mapping[TopicPartition, Sequence[int]],
    throttle: int | None,
    *,
    wait: bool,
) -> dict[TopicPartition, ClientError]:
    """Start the moves and return the refused ones. If interrupted, report a throttle that stays."""
    moved = True
    try:
        if throttle is not None:
            others = admin.reassignments.moving()
            moved = False
            if others:
                note("the throttle also applies to the moves in progress")
            admin.reassignments.throttle(planned, throttle)
        refused = admin.reassignments.start(planned)
        if wait:
            _wait(admin, [tp for tp in planned if tp not in refused])
            if throttle is not None and not admin.reassignments.unthrottle_moved(
                {tp.topic for tp in planned}
            ):
                note(_OTHERS_MOVE)
            moved = True
        return refused
    finally:
        if not moved:
            note(_STILL_THROTTLED)


def _row(
    tp: TopicPartition, now: Sequence[int], then: Sequence[int], refused: ClientError | None
) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "from": list(now),
        "to": list(then),
        "error": str(refused) if refused else None,
    }


def _wait(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    progress = Progress("partitions moved", total=len(partitions))
    try:
        while left := admin.reassignments.moving(partitions) if partitions else []:
            progress.update(len(partitions) - len(left))
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        note(
            "the moves continue; see `millstream reassign status`, or stop them with `millstream reassign cancel`"
        )
        raise


@app.command()
def status(
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the moves in progress."""
    with _admin(bootstrap, timeout) as admin:
        moving = admin.reassignments.moving()
    if format is Format.json:
        print_json([_move_json(move) for move in moving])
    elif moving:
        print_table(
            ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"),
            [
                (
                    move.partition.topic,
                    move.partition.partition,
                    move.replicas,
                    move.adding,
                    move.removing,
                )
                for move in moving
            ],
        )
    else:
        note("no moves in progress")


def _move_json(move: Moving) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "replicas": list(move.replicas),
        "adding": list(move.adding),
        "removing": list(move.removing),
    }


@app.command()
def cancel(
    topic: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Cancel the moves in progress; the partitions keep their old replicas."""
    with _admin(bootstrap, timeout) as admin:
        for name in topic or ():
            admin.topics.get(name)  # otherwise a misspelt name would look as if nothing moved
        moving = [
            move.partition
            for move in admin.reassignments.moving()
            if not topic or move.partition.topic in topic
        ]
        refused = admin.reassignments.start(dict.fromkeys(moving)) if moving else {}
        for error in refused.values():
            note(str(error))
        # Report before the throttle is removed, which may fail.
        note(
            f"cancelled {len(moving) - len(refused)} of {counted(len(moving), 'move')}"
            if moving
            else "no moves in progress"
        )
        if moving:
            _remove_throttle(admin, {tp.topic for tp in moving})
    if refused:
        raise declare.Exit(1)


def _remove_throttle(admin: Admin, topics: set[str]) -> None:
    try:
        all_moved = admin.reassignments.unthrottle_moved(topics)
    except ClientError:
        note(_MAY_BE_THROTTLED)
        raise
    if not all_moved:
        note(_OTHERS_MOVE)


@app.command()
def unthrottle(
    topic: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove the throttle of `execute --no-wait`; moves in progress continue at full speed."""
    with _admin(bootstrap, timeout) as admin:
        admin.reassignments.unthrottle(topic or admin.topics.names())
    note("removed the throttle")

"""``millstream reassign``: plan, execute, status, cancel, unthrottle. Plans are files in Kafka's own format."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.local.foreground import stopped_by_signals

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.reassignments import Moving

app = noun("Move partitions between brokers while they are used.")

_LOOK_S = 0.5
_STILL_THROTTLED = "the throttle stays; `millstream reassign unthrottle` lifts it when all has moved"
_MAY_BE_THROTTLED = "a throttle may be left; `millstream reassign unthrottle` lifts it"
_OTHERS_MOVE = "other moves go on, and so does their throttle; `millstream reassign status` shows them"

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="Only this topic (repeat it); all unless given.",
        autocompletion=complete_topics,
    ),
]
Brokers = Annotated[
    str | None, typer.Option("--brokers", metavar="N,N,..", help="Where to; all brokers unless given.")
]
Factor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        min=1,
        help="So many replicas of each partition; as many as before unless given.",
    ),
]
PlanFile = Annotated[Path | None, typer.Argument(help="A plan, as `reassign plan` prints it; - is stdin.")]


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
    """Print a plan that spreads partitions evenly over the brokers and moves as little as possible. Changes nothing."""
    with _admin(bootstrap, timeout) as admin:
        current, wanted = _plan(admin, topic, brokers, replication_factor)
    if format is Format.table:
        _print_moves(current, wanted)
    else:
        print(_plan_text(wanted))
    note(f"{len(wanted)} of {len(current)} partitions move" if wanted else "nothing has to move")


def _plan(
    admin: Admin, topics: Sequence[str] | None, brokers: str | None, factor: int | None
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[TopicPartition, tuple[int, ...]]]:
    from millstream.client.admin.reassignment_plan import moves, spread

    there = {one.id: one.rack for one in admin.cluster.describe().brokers}
    wanted = _broker_list(brokers) if brokers is not None else sorted(there)
    if missing := [node for node in wanted if node not in there]:
        raise ClientError(
            f"there is no broker {missing[0]}", hint=f"the brokers are {', '.join(map(str, sorted(there)))}"
        )
    # Of what moves already, where it moves to: meanwhile it has its old replicas as well. Asked for first, because moves end.
    targets = {one.partition: one.target for one in admin.reassignments.moving()}
    current = admin.reassignments.current(topics or None)
    settled = {tp: targets.get(tp, replicas) for tp, replicas in current.items()}
    away = sorted(set[int]().union(*settled.values()) - there.keys())
    if away and brokers is None:
        note(_leaves(away))
    return current, moves(settled, spread(settled, wanted, there, factor=factor))


def _leaves(away: Sequence[int]) -> str:
    """Nobody has said that these brokers should have nothing any more."""
    names = ", ".join(map(str, away))
    if len(away) == 1:
        return f"broker {names} is away: this plan moves its replicas to other brokers"
    return f"brokers {names} are away: this plan moves their replicas to other brokers"


def _broker_list(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of broker ids like 0,1,2")
    return [int(word) for word in words]


def _plan_text(wanted: Mapping[TopicPartition, Sequence[int]]) -> str:
    rows = [
        json.dumps({"topic": tp.topic, "partition": tp.partition, "replicas": list(nodes)})
        for tp, nodes in sorted(wanted.items())
    ]
    return '{"version": 1, "partitions": [\n  ' + ",\n  ".join(rows) + "\n]}"


def _print_moves(
    current: Mapping[TopicPartition, Sequence[int]], wanted: Mapping[TopicPartition, Sequence[int]]
) -> None:
    print_table(
        ("TOPIC", "PARTITION", "NOW", "THEN"),
        [(tp.topic, tp.partition, current.get(tp), nodes) for tp, nodes in sorted(wanted.items())],
    )


def _read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        rows = [_planned(row) for row in _rows(json.loads(text))]
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ClientError(
            f"{path} is not a plan",
            hint="`millstream reassign plan` prints one; Kafka's own files do as well",
        ) from None
    plan = dict(rows)
    if len(plan) < len(rows):
        twice = next(tp for tp, count in Counter(tp for tp, _nodes in rows).items() if count > 1)
        raise ClientError(f"{path} names {twice} more than once")
    return plan


def _rows(plan: Any) -> list[dict[str, Any]]:
    if not isinstance(plan, dict) or plan.get("version", 1) != 1 or not isinstance(plan["partitions"], list):
        raise ValueError("another version")
    return plan["partitions"]


def _refuse_unknown(
    wanted: Mapping[TopicPartition, Sequence[int]], current: Mapping[TopicPartition, Sequence[int]]
) -> None:
    """Before anything is begun: a plan for another cluster, or of another time."""
    unknown = next((tp for tp in sorted(wanted) if tp not in current), None)
    if unknown is not None:
        count = sum(tp.topic == unknown.topic for tp in current)
        raise ClientError(
            f"there is no partition {unknown.partition} of {unknown.topic}",
            hint=f"it has the partitions 0 to {count - 1}; `millstream reassign plan` makes a plan of what is there",
        )


def _planned(row: dict[str, Any]) -> tuple[TopicPartition, tuple[int, ...]]:
    """Nothing is bent to fit: these words decide where data go."""
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
        typer.Option(
            "--throttle", metavar="BYTES", min=1, help="The most that moves take of each broker, a second."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until all has moved, and lift the throttle.")] = True,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Carry out a plan: the one in FILE, or the one that `plan` would make."""
    if file is not None and (topic or brokers or replication_factor):
        raise typer.BadParameter(
            "a plan in a file says it all: leave out --topic, --brokers and --replication-factor"
        )
    with _admin(bootstrap, timeout) as admin:
        if file is not None:
            wanted = _read_plan(file)
            current = admin.reassignments.current({tp.topic for tp in wanted}) if wanted else {}
            _refuse_unknown(wanted, current)
        else:
            current, wanted = _plan(admin, topic, brokers, replication_factor)
        with stopped_by_signals():
            refused = _execute(admin, wanted, throttle, wait=wait) if wanted else {}
    if format is Format.json:
        print_json([_row(tp, current.get(tp, ()), nodes, refused.get(tp)) for tp, nodes in wanted.items()])
    elif moves := {tp: nodes for tp, nodes in wanted.items() if tp not in refused}:
        _print_moves(current, moves)
    elif not refused:
        note("nothing has to move")
    for error in refused.values():
        note(str(error))
    if refused:
        raise typer.Exit(1)


def _execute(
    admin: Admin, wanted: Mapping[TopicPartition, Sequence[int]], throttle: int | None, *, wait: bool
) -> dict[TopicPartition, ClientError]:
    """Moves, and returns what was refused. Whatever ends it before its time, a throttle that stays is told."""
    moved = True
    try:
        if throttle is not None:
            others = admin.reassignments.moving()
            moved = False
            if others:
                note("moves that are under way already get this rate as well")
            admin.reassignments.throttle(wanted, throttle)
        refused = admin.reassignments.start(wanted)
        if wait:
            _wait(admin, [tp for tp in wanted if tp not in refused])
            if throttle is not None and not admin.reassignments.unthrottle_moved({tp.topic for tp in wanted}):
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
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        note("the moves go on; `millstream reassign status` shows them, `cancel` calls them off")
        raise


@app.command()
def status(
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what is on its way."""
    with _admin(bootstrap, timeout) as admin:
        moving = admin.reassignments.moving()
    if format is Format.json:
        print_json([_moving_row(one) for one in moving])
    elif moving:
        print_table(
            ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"),
            [
                (one.partition.topic, one.partition.partition, one.replicas, one.adding, one.removing)
                for one in moving
            ],
        )
    else:
        note("nothing is being moved")


def _moving_row(one: Moving) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "replicas": list(one.replicas),
        "adding": list(one.adding),
        "removing": list(one.removing),
    }


@app.command()
def cancel(
    topic: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Stop moving, and go back to where the partitions were."""
    with _admin(bootstrap, timeout) as admin:
        for name in topic or ():
            admin.topics.get(name)  # a wrong name would look as if nothing moved
        moving = [
            one.partition for one in admin.reassignments.moving() if not topic or one.partition.topic in topic
        ]
        refused = admin.reassignments.start(dict.fromkeys(moving)) if moving else {}
        for error in refused.values():
            note(str(error))
        # Before the throttle is lifted: that may fail, and this is so already.
        note(
            f"{len(moving) - len(refused)} of {len(moving)} moves called off"
            if moving
            else "nothing is being moved"
        )
        if moving:
            _lift_throttle(admin, {tp.topic for tp in moving})
    if refused:
        raise typer.Exit(1)


def _lift_throttle(admin: Admin, topics: set[str]) -> None:
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
    """Lift the throttle that `execute --no-wait` leaves in place; what still moves goes on at full speed."""
    with _admin(bootstrap, timeout) as admin:
        admin.reassignments.unthrottle(topic or admin.topics.names())
    note("no throttle is left")

"""``millstream transactions``: list, describe, find those that hang, abort."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
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
from millstream.cli.support.output import note, print_json, print_table
from millstream.cli.support.partitions import partitions_of
from millstream.client.admin.states import TransactionState
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.transactions import ActiveProducer, Transaction

app = noun("Transactions, and how to end them.")

HANGING_COLUMNS = ("TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "START-OFFSET", "LAST-TIMESTAMP", "IDLE")
# The longest that a broker lets a transaction run, unless transaction.max.timeout.ms says otherwise.
LONGEST_TRANSACTION = "15m"

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command("list")
def list_transactions(
    state: Annotated[
        list[TransactionState] | None,
        typer.Option("--state", case_sensitive=False, help="Only in this state (repeat it)."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only of this producer (repeat it)."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="TIME", help="Only open for so long: 90s, 1h, PT5M."),
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="REGEX", help="Only ids that match as a whole.")
    ] = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the transactional ids that the coordinators know."""
    longer_than_ms = None if longer_than is None else _duration(longer_than, "--longer-than")
    with _admin(bootstrap, timeout) as admin:
        found = admin.transactions.list(
            states=state or (), producer_ids=producer_id or (), longer_than_ms=longer_than_ms, pattern=match
        )
    if format is Format.json:
        print_json(
            [
                {
                    "transactional_id": one.id,
                    "producer_id": one.producer_id,
                    "state": one.state,
                    "coordinator": one.coordinator.node,
                }
                for one in found
            ]
        )
    elif found:
        rows = [(one.id, one.coordinator.node, one.producer_id, one.state) for one in found]
        print_table(("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"), rows)
    else:
        filtered = state or producer_id or longer_than or match
        note("no transaction is like that" if filtered else "there are no transactional ids yet")


@app.command()
def describe(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.")],
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show state, producer, age and partitions of transactional ids."""
    with _admin(bootstrap, timeout) as admin:
        found = [admin.transactions.get(one) for one in ids]
    if format is Format.json:
        print_json([_transaction_json(one) for one in found])
        return
    columns = (
        "TRANSACTIONAL-ID",
        "COORDINATOR",
        "PRODUCER-ID",
        "EPOCH",
        "STATE",
        "TIMEOUT",
        "STARTED",
        "AGE",
        "PARTITIONS",
    )
    print_table(columns, [_transaction_row(one) for one in found])


@app.command()
def hanging(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC[:P,P]...]",
            help="Where to look; everywhere when none.",
            autocompletion=complete_topics,
        ),
    ] = None,
    idle: Annotated[
        str, typer.Option("--idle", metavar="TIME", help="Only without a record for so long.")
    ] = LONGEST_TRANSACTION,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end."""
    idle_ms = _duration(idle, "--idle")
    now_ms = int(time.time() * 1000)
    with _admin(bootstrap, timeout) as admin:
        where = partitions_of(admin, topics or admin.topics.names())
        found = admin.transactions.hanging(where, idle_ms=idle_ms, now_ms=now_ms)
    if format is Format.json:
        print_json([_producer_json(one) for one in found])
    elif found:
        print_table(HANGING_COLUMNS, [_producer_row(one, now_ms) for one in found])
        first = found[0]
        where_first = f"--topic {first.partition.topic} --partition {first.partition.partition}"
        note(f"end one with `millstream transactions abort {where_first} --producer-id {first.producer_id}`")
    else:
        note(f"no transaction hangs in {counted(len(where), 'partition')}")


@app.command()
def abort(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A transactional id.")] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Where one hangs.", autocompletion=complete_topics),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Where one hangs.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", metavar="N", help="Whose, if several are open there.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if a coordinator will end it by itself.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort a transaction: of a transactional id through its coordinator (its producer is fenced), or one that hangs in a partition.

    Asks first when a person is at the terminal.
    """
    hangs = topic is not None and partition is not None
    if (id is not None) == hangs or (
        id is not None and (topic, partition, producer_id) != (None, None, None)
    ):
        raise typer.BadParameter("give ID, or --topic and --partition (and --producer-id)")
    with _admin(bootstrap, timeout) as admin:
        if topic is not None and partition is not None:
            (where,) = admin.topics.partitions(topic, [partition])
            _abort_in(admin, where, producer_id, force, yes)
        elif id is not None:
            _confirm(f"Abort the transaction of {id}?", yes)
            aborted = admin.transactions.abort(id)
            print(f"aborted the transaction of {id} in {_partitions(aborted.partitions) or 'no partition'}")


def _abort_in(admin: Admin, where: TopicPartition, producer_id: int | None, force: bool, yes: bool) -> None:
    found = admin.transactions.find(where, producer_id)
    owner = admin.transactions.owner(found)
    if owner is not None and not force:
        raise ClientError(
            f"the transaction of producer {found.producer_id} in {where} does not hang: it belongs to transactional id "
            f"{owner.id!r}, whose coordinator aborts it {_span(owner.timeout_ms)} after it began",
            hint=f"wait, or `millstream transactions abort {owner.id}`",
        )
    _confirm(
        f"Abort the transaction of producer {found.producer_id} in {where} from {found.start_offset}?", yes
    )
    admin.transactions.write_abort_marker(found)
    print(
        f"aborted the transaction of producer {found.producer_id} in {where}, open since offset {found.start_offset}"
    )


def _confirm(question: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True)


def _duration(text: str, option: str) -> int:
    from millstream.client.admin.group_reset import parse_duration

    try:
        return parse_duration(text)
    except ClientError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _transaction_row(one: Transaction) -> tuple[object, ...]:
    age_ms = None if one.started_ms is None else int(time.time() * 1000) - one.started_ms
    return (
        one.id,
        one.coordinator.node,
        one.producer_id,
        one.producer_epoch,
        one.state,
        _span(one.timeout_ms),
        _moment(one.started_ms),
        None if age_ms is None else _span(age_ms),
        _partitions(one.partitions) or None,
    )


def _transaction_json(one: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": one.id,
        "coordinator": one.coordinator.node,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "state": one.state,
        "timeout_ms": one.timeout_ms,
        "started_ms": one.started_ms,
        "partitions": [list(partition) for partition in one.partitions],
    }


def _producer_row(one: ActiveProducer, now_ms: int) -> tuple[object, ...]:
    idle = _span(now_ms - one.last_timestamp_ms)
    last = _moment(one.last_timestamp_ms)
    return (*one.partition, one.producer_id, one.producer_epoch, one.start_offset, last, idle)


def _producer_json(one: ActiveProducer) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "start_offset": one.start_offset,
        "last_timestamp": one.last_timestamp_ms,
    }


def _partitions(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(map(str, partitions))


def _moment(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def _span(length_ms: int) -> str:
    """In the unit that reads best: 800ms, 12s, 15m, 3h, 2d."""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if length_ms >= size_ms:
            return f"{length_ms // size_ms}{unit}"
    return f"{length_ms}ms"

"""``millstream transactions``: list, describe, find hanging ones, abort."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
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

app = noun("List, describe and abort transactions.")

HANGING_COLUMNS = (
    "TOPIC",
    "PARTITION",
    "PRODUCER-ID",
    "EPOCH",
    "START-OFFSET",
    "LAST-TIMESTAMP",
    "IDLE",
)
# Kafka's default of transaction.max.timeout.ms, the longest that a broker lets a transaction run.
MAX_TRANSACTION_TIME = "15m"

Yes = Annotated[bool, declare.Option("--yes", "-y", help="Do not ask for confirmation.")]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command("list")
def list_transactions(
    state: Annotated[
        list[TransactionState] | None,
        declare.Option(
            "--state", case_sensitive=False, help="List only ids in this state (repeatable)."
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        declare.Option(
            "--producer-id", metavar="N", help="List only ids of this producer (repeatable)."
        ),
    ] = None,
    longer_than: Annotated[
        str | None,
        declare.Option(
            "--longer-than",
            metavar="TIME",
            help="List only transactions open for longer: 90s, 1h, PT5M.",
        ),
    ] = None,
    match: Annotated[
        str | None,
        declare.Option("--match", metavar="REGEX", help="List only ids that match completely."),
    ] = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the transactional ids that the coordinators know."""
    longer_than_ms = None if longer_than is None else _duration(longer_than, "--longer-than")
    with _admin(bootstrap, timeout) as admin:
        transactions = admin.transactions.list(
            states=state or (),
            producer_ids=producer_id or (),
            longer_than_ms=longer_than_ms,
            pattern=match,
        )
    if format is Format.json:
        print_json(
            [
                {
                    "transactional_id": transaction.id,
                    "producer_id": transaction.producer_id,
                    "state": transaction.state,
                    "coordinator": transaction.coordinator.node,
                }
                for transaction in transactions
            ]
        )
    elif transactions:
        rows = [
            (
                transaction.id,
                transaction.coordinator.node,
                transaction.producer_id,
                transaction.state,
            )
            for transaction in transactions
        ]
        print_table(("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"), rows)
    else:
        filters = [f"--state {name}" for name in state or ()]
        filters += [f"--producer-id {number}" for number in producer_id or ()]
        filters += [f"--longer-than {longer_than}"] if longer_than else []
        filters += [f"--match {shlex.quote(match)}"] if match else []
        note(
            f"no transactions match {' '.join(filters)}" if filters else "no transactional ids yet"
        )


@app.command()
def describe(
    ids: Annotated[list[str], declare.Argument(metavar="ID...", help="Transactional ids.")],
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show state, producer, age and partitions of transactional ids."""
    with _admin(bootstrap, timeout) as admin:
        transactions = [admin.transactions.get(id) for id in ids]
    if format is Format.json:
        print_json([_transaction_json(transaction) for transaction in transactions])
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
    print_table(columns, [_transaction_row(transaction) for transaction in transactions])


@app.command()
def hanging(
    topics: Annotated[
        list[str] | None,
        declare.Argument(
            metavar="[TOPIC[:P,P]...]",
            help="Topics or partitions to search. [default: all]",
            autocompletion=complete_topics,
        ),
    ] = None,
    idle: Annotated[
        str, declare.Option("--idle", metavar="TIME", help="Minimum time since the last record.")
    ] = MAX_TRANSACTION_TIME,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end."""
    idle_ms = _duration(idle, "--idle")
    now_ms = int(time.time() * 1000)
    with _admin(bootstrap, timeout) as admin:
        partitions = partitions_of(admin, topics or admin.topics.names())
        hanging = admin.transactions.hanging(partitions, idle_ms=idle_ms, now_ms=now_ms)
    if format is Format.json:
        print_json([_producer_json(producer) for producer in hanging])
    elif hanging:
        print_table(HANGING_COLUMNS, [_producer_row(producer, now_ms) for producer in hanging])
        first = hanging[0]
        options = f"--topic {first.partition.topic} --partition {first.partition.partition}"
        note(
            f"abort with `millstream transactions abort {options} --producer-id {first.producer_id}`"
        )
    else:
        note(f"no hanging transactions in {counted(len(partitions), 'partition')}")


@app.command()
def abort(
    id: Annotated[str | None, declare.Argument(metavar="[ID]", help="A transactional id.")] = None,
    topic: Annotated[
        str | None,
        declare.Option(
            "--topic", "-t", help="Topic of a hanging transaction.", autocompletion=complete_topics
        ),
    ] = None,
    partition: Annotated[
        int | None,
        declare.Option("--partition", "-p", min=0, help="Partition of a hanging transaction."),
    ] = None,
    producer_id: Annotated[
        int | None,
        declare.Option(
            "--producer-id",
            metavar="N",
            help="Producer, if several transactions are open in the partition.",
        ),
    ] = None,
    force: Annotated[
        bool, declare.Option("--force", help="Abort even if a coordinator would end it.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the transaction of a transactional id, or a hanging transaction in a partition.

    The coordinator of a transactional id fences its producer. Asks for confirmation on a terminal.
    """
    hangs = topic is not None and partition is not None
    if (id is not None) == hangs or (
        id is not None and (topic, partition, producer_id) != (None, None, None)
    ):
        raise declare.BadParameter("give an ID, or --topic and --partition (and --producer-id)")
    with _admin(bootstrap, timeout) as admin:
        if topic is not None and partition is not None:
            (topic_partition,) = admin.topics.partitions(topic, [partition])
            _abort_in(admin, topic_partition, producer_id, force, yes)
        elif id is not None:
            _confirm(f"Abort the transaction of {id}?", yes)
            aborted = admin.transactions.abort(id)
            print(
                f"aborted the transaction of {id} in {_partitions(aborted.partitions) or 'no partitions'}"
            )


def _abort_in(
    admin: Admin, partition: TopicPartition, producer_id: int | None, force: bool, yes: bool
) -> None:
    producer = admin.transactions.find(partition, producer_id)
    owner = admin.transactions.owner(producer)
    transaction = f"the transaction of producer {producer.producer_id} in {partition}"
    if owner is not None and not force:
        raise ClientError(
            f"{transaction} is not hanging: it belongs to transactional id {owner.id!r}, "
            f"whose coordinator aborts it {_span(owner.timeout_ms)} after its start",
            hint=f"wait, or run `millstream transactions abort {owner.id}`",
        )
    _confirm(f"Abort {transaction}, open since offset {producer.start_offset}?", yes)
    admin.transactions.write_abort_marker(producer)
    print(f"aborted {transaction}, open since offset {producer.start_offset}")


def _confirm(question: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        declare.confirm(question, abort=True)


def _duration(text: str, option: str) -> int:
    from millstream.client.admin.group_reset import parse_duration

    try:
        return parse_duration(text)
    except ClientError as error:
        raise declare.BadParameter(str(error), param_hint=option) from None


def _transaction_row(transaction: Transaction) -> tuple[object, ...]:
    age_ms = (
        None if transaction.started_ms is None else int(time.time() * 1000) - transaction.started_ms
    )
    return (
        transaction.id,
        transaction.coordinator.node,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state,
        _span(transaction.timeout_ms),
        _moment(transaction.started_ms),
        None if age_ms is None else _span(age_ms),
        _partitions(transaction.partitions) or None,
    )


def _transaction_json(transaction: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.id,
        "coordinator": transaction.coordinator.node,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "state": transaction.state,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": transaction.started_ms,
        "partitions": [list(partition) for partition in transaction.partitions],
    }


def _producer_row(producer: ActiveProducer, now_ms: int) -> tuple[object, ...]:
    idle = _span(now_ms - producer.last_timestamp_ms)
    last = _moment(producer.last_timestamp_ms)
    return (
        *producer.partition,
        producer.producer_id,
        producer.producer_epoch,
        producer.start_offset,
        last,
        idle,
    )


def _producer_json(producer: ActiveProducer) -> dict[str, Any]:
    return {
        "topic": producer.partition.topic,
        "partition": producer.partition.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "start_offset": producer.start_offset,
        "last_timestamp": producer.last_timestamp_ms,
    }


def _partitions(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(map(str, partitions))


def _moment(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def _span(length_ms: int) -> str:
    """Return a duration in a readable unit: 800ms, 12s, 15m, 3h, 2d."""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if length_ms >= size_ms:
            return f"{length_ms // size_ms}{unit}"
    return f"{length_ms}ms"

"""What a client has written twice by itself, so that no broker could tell.

An idempotent producer numbers its batches within an epoch. When one of several that are in flight
is refused, librdkafka raises the epoch and sends everything that has no answer yet again, with new
numbers, for all partitions; what had been written already is then written twice
(``rd_kafka_idemp_drain_epoch_bump``, "skipped sequence numbers"). The log shows it: the two lie
there under different epochs. Twice under one epoch is the broker's fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.sim.checks.history import Key, Value
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.state_checks import Replica


def sent_again(logs: Mapping[Key, Replica]) -> set[Value]:
    """Values that lie in a log more than once, and each time under another epoch
    of their producer.
    """
    found: set[Value] = set()
    for replica in logs.values():
        epochs: dict[Value, list[tuple[int, int]]] = {}
        for batch in replica.batches:
            for value in batch.values:
                epochs.setdefault(value, []).append((batch.producer_id, batch.producer_epoch))
        found |= {
            value for value, rows in epochs.items() if len(rows) > 1 and len(set(rows)) == len(rows)
        }
    return found


def without_sent_again(violations: Iterable[Violation], values: set[Value]) -> list[Violation]:
    """The violations that are not explained by them."""
    return [violation for violation in violations if _value(violation) not in values]


def _value(violation: Violation) -> Value | None:
    if violation.kind == "duplicate":
        return violation.detail.partition(" is at ")[0]
    if violation.kind == "copied-twice":
        return violation.detail.rpartition(": ")[0]
    return None

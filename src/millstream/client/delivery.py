"""``delivery=``: choose the delivery guarantee of a producer or consumer with one word.

``at-most-once``   no duplicates, but records may be lost: no retries, and offsets are committed
                   before records are handled.
``at-least-once``  no loss, but duplicates are possible: acks=all, retries, and offsets are
                   committed after records are handled.
``exactly-once``   no loss and no duplicates: idempotent writes, with a transactional id in
                   transactions. A consumer reads committed records, and the producer's transaction
                   commits its offsets.

Other arguments must not contradict it. The resulting settings are in ``producer.guarantee`` and
``consumer.guarantee``, and in the log (``millstream.client``, INFO). The topic matters too: three
or more replicas, min.insync.replicas above 1 and below their number, and no unclean elections.
`millstream doctor` checks these.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from millstream.client.errors import ClientError

DeliveryName = Literal["at-most-once", "at-least-once", "exactly-once"]
logger = logging.getLogger("millstream.client")

RETRIES = 2_147_483_647


class Guarantee(NamedTuple):
    """The chosen delivery, the client settings that provide it, and a sentence for people."""

    delivery: DeliveryName
    settings: Mapping[str, Any]
    says: str


def for_producer(
    delivery: DeliveryName,
    transactional_id: str | None,
    *,
    acks: str | int | None = None,
    idempotent: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Guarantee:
    """Return the guarantee of a producer; ClientError if other arguments contradict it."""
    _check(delivery)
    if transactional_id is not None and delivery != "exactly-once":
        raise ClientError(
            f"transactions write exactly once, but delivery is {delivery}",
            hint='use delivery="exactly-once", or leave out the transactional_id',
        )
    settings: dict[str, Any]
    if delivery == "at-most-once":
        settings = {"acks": 1, "enable.idempotence": False, "message.send.max.retries": 0}
        says = "a record is sent once, and not again if it is not acknowledged"
    elif delivery == "at-least-once":
        settings = {
            "acks": "all",
            "enable.idempotence": False,
            "message.send.max.retries": RETRIES,
        } | _IN_ORDER
        says = "a record is sent until all in-sync replicas have it; a lost response duplicates it"
    else:
        settings = {"acks": "all", "enable.idempotence": True, "message.send.max.retries": RETRIES}
        says = "a record is written once, as long as this producer lives"
        if transactional_id is not None:
            says = f"records are written once, in transactions of {transactional_id!r}, across restarts"
    _check_agrees(delivery, "acks", settings["acks"], acks)
    _check_agrees(delivery, "idempotent", settings["enable.idempotence"], idempotent)
    _check_options(delivery, settings, options or {})
    return _logged(Guarantee(delivery, settings, says))


# Without sequence numbers a retried batch may be appended after a later one.
_IN_ORDER = {"max.in.flight.requests.per.connection": 1}


def for_consumer(
    delivery: DeliveryName,
    group: str | None,
    *,
    auto_commit: bool | None = None,
    isolation: str = "read_committed",
    options: Mapping[str, Any] | None = None,
) -> Guarantee:
    """Return the guarantee of a consumer; ClientError if other arguments contradict it."""
    _check(delivery)
    if group is None:
        raise ClientError(
            "delivery needs a group, which stores the committed offsets",
            hint="give the consumer a group, or leave out delivery",
        )
    settings = {"enable.auto.commit": False, "isolation.level": "read_committed"}
    says = {
        "at-most-once": "records are committed before they are handed out",
        "at-least-once": "records are committed after they are handled: at the next request",
        "exactly-once": "records are committed by a producer's transaction: "
        "transaction.commit_offsets(consumer)",
    }[delivery]
    if delivery != "at-least-once":  # there the application may also commit, with commit()
        _check_agrees(delivery, "auto_commit", delivery == "at-most-once", auto_commit)
    _check_agrees(delivery, "isolation", settings["isolation.level"], isolation)
    _check_options(delivery, settings, options or {})
    return _logged(Guarantee(delivery, settings, says))


def reject_exactly_once(delivery: str | None, where: str) -> None:
    """Raise if ``where`` commits offsets for its handlers.

    A handler's writes are in no transaction with these offsets.
    """
    if delivery == "exactly-once":
        raise ClientError(
            f"{where} cannot commit offsets together with the writes of a handler",
            hint="read batches() and call transaction.commit_offsets(consumer), "
            "or use delivery='at-least-once'",
        )


def _check(delivery: str) -> None:
    known = get_args(DeliveryName)
    if delivery not in known:
        close = difflib.get_close_matches(delivery, known, 1)
        raise ClientError(
            f"unknown delivery {delivery!r}",
            hint=f"did you mean {close[0]!r}?" if close else f"choose {', '.join(known)}",
        )


# Settings for which the library has two names.
_ALIASES = {
    "request.required.acks": "acks",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}


def _check_options(delivery: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        setting = _ALIASES.get(name, name)
        if setting in settings:
            _check_agrees(delivery, name, settings[setting], value)


def _check_agrees(delivery: str, name: str, required: object, value: object) -> None:
    if value is not None and _normal(value) != _normal(required):
        raise ClientError(
            f"{name}={value} contradicts delivery={delivery!r}, which means {name}={required}",
            hint=f"leave out {name}, or delivery",
        )


def _normal(value: object) -> str:
    text = str(value).lower()
    return "all" if text == "-1" else text


def _logged(guarantee: Guarantee) -> Guarantee:
    names = ", ".join(f"{name}={value}" for name, value in guarantee.settings.items())
    logger.info("%s: %s (%s)", guarantee.delivery, guarantee.says, names)
    return guarantee

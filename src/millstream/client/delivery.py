"""``delivery=``: one word for what producers and consumers have to be told so that records arrive
as often as one wants.

``at-most-once``   nothing twice, something perhaps never: no retries, and offsets are committed before records are handled.
``at-least-once``  nothing lost, something perhaps twice: acks=all, retries, and offsets are committed when records are handled.
``exactly-once``   nothing lost, nothing twice: idempotent writes, in transactions with a transactional id; a consumer reads what is
                   committed, and its offsets are committed by the producer's transaction.

What else is asked for may not contradict it. What it sets is in ``producer.guarantee`` and
``consumer.guarantee``, and in the log (``millstream.client``, INFO). The other half is the topic's:
three replicas or more, min.insync.replicas above 1 and below that, no unclean elections;
`millstream doctor` looks.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from millstream.client.errors import ClientError

DeliveryName = Literal["at-most-once", "at-least-once", "exactly-once"]
log = logging.getLogger("millstream.client")

RETRIES = 2_147_483_647


class Guarantee(NamedTuple):
    """What was asked for, the settings of the client that make it so, and a sentence for people."""

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
    _check(delivery)
    if transactional_id is not None and delivery != "exactly-once":
        raise ClientError(
            f"transactions write exactly once, and {delivery} was asked for",
            hint='take delivery="exactly-once", or leave out the transactional_id',
        )
    settings: dict[str, Any]
    if delivery == "at-most-once":
        settings = {"acks": 1, "enable.idempotence": False, "message.send.max.retries": 0}
        says = "a record is sent once; one that is not acknowledged is not sent again"
    elif delivery == "at-least-once":
        settings = {
            "acks": "all",
            "enable.idempotence": False,
            "message.send.max.retries": RETRIES,
        } | _IN_ORDER
        says = "a record is sent until all replicas in sync have it; an acknowledgement that gets lost doubles it"
    else:
        settings = {"acks": "all", "enable.idempotence": True, "message.send.max.retries": RETRIES}
        says = "a record is written once, as long as this producer lives"
        if transactional_id is not None:
            says = f"records are written once, in transactions of {transactional_id!r}, across restarts"
    _check_agrees(delivery, "acks", settings["acks"], acks)
    _check_agrees(delivery, "idempotent", settings["enable.idempotence"], idempotent)
    _check_options(delivery, settings, options or {})
    return _told(Guarantee(delivery, settings, says))


# Without sequence numbers a batch that is sent again may come behind one that was sent after it.
_IN_ORDER = {"max.in.flight.requests.per.connection": 1}


def for_consumer(
    delivery: DeliveryName,
    group: str | None,
    *,
    auto_commit: bool | None = None,
    isolation: str = "read_committed",
    options: Mapping[str, Any] | None = None,
) -> Guarantee:
    _check(delivery)
    if group is None:
        raise ClientError(
            "only a group remembers what was handled", hint="give the consumer a group, or leave out delivery"
        )
    settings = {"enable.auto.commit": False, "isolation.level": "read_committed"}
    says = {
        "at-most-once": "records are committed before they are handed out",
        "at-least-once": "records are committed when they are handled: when the next are asked for",
        "exactly-once": "records are committed by a producer's transaction: transaction.commit_offsets(consumer)",
    }[delivery]
    if delivery != "at-least-once":  # which whoever handles records may see to as well, with commit()
        _check_agrees(delivery, "auto_commit", delivery == "at-most-once", auto_commit)
    _check_agrees(delivery, "isolation", settings["isolation.level"], isolation)
    _check_options(delivery, settings, options or {})
    return _told(Guarantee(delivery, settings, says))


def reject_exactly_once(delivery: str | None, where: str) -> None:
    """Of those that commit for their handlers: what the handler writes is in no transaction with
    the offsets.
    """
    if delivery == "exactly-once":
        raise ClientError(
            f"{where} cannot commit offsets together with what a handler writes",
            hint="read batches() and call transaction.commit_offsets(consumer), or take delivery='at-least-once'",
        )


def _check(delivery: str) -> None:
    known = get_args(DeliveryName)
    if delivery not in known:
        close = difflib.get_close_matches(delivery, known, 1)
        raise ClientError(
            f"there is no delivery {delivery!r}",
            hint=f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}",
        )


# Settings that the library knows by two names.
_ALIASES = {
    "request.required.acks": "acks",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}


def _check_options(delivery: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, given in options.items():
        setting = _ALIASES.get(name, name)
        if setting in settings:
            _check_agrees(delivery, name, settings[setting], given)


def _check_agrees(delivery: str, name: str, wanted: object, given: object) -> None:
    if given is not None and _plain(given) != _plain(wanted):
        raise ClientError(
            f"{name}={given} contradicts delivery={delivery!r}, which means {name}={wanted}",
            hint=f"leave out {name}, or delivery",
        )


def _plain(value: object) -> str:
    text = str(value).lower()
    return "all" if text == "-1" else text


def _told(found: Guarantee) -> Guarantee:
    names = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    log.info("%s: %s (%s)", found.delivery, found.says, names)
    return found

"""Which records were sent back, in the compacted topic ``<dead-letter topic>.redriven``.

A marker is written in the transaction that sends its record. The position of the redrive group is
not enough: another reader may later write a letter about the same record, or a letter may be put
back behind the position.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from millstream.client.consumer import Consumer
from millstream.client.dead_letters.decisions import LetterPlace, Redelivery
from millstream.client.dead_letters.letters import redriven_topic
from millstream.client.errors import TopicExists

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin


def marker_of(redelivery: Redelivery, letter: LetterPlace) -> tuple[bytes, bytes]:
    """Return key and value of the marker that a record was sent back."""
    value = {"dead_letter": {"partition": letter.partition, "offset": letter.offset}}
    return _key(redelivery), json.dumps(value).encode()


def already_redriven(
    admin: Admin, topic: str, candidates: Collection[Redelivery]
) -> set[Redelivery]:
    """Return those of the records that were sent back out of a dead-letter topic before."""
    markers = redriven_topic(topic)
    if not candidates or markers not in admin.topics.names():
        return set()
    keys = {_key(redelivery): redelivery for redelivery in candidates}
    connection = admin.connection
    with Consumer(
        connection.bootstrap,
        markers,
        until_end=True,
        timeout_s=connection.timeout_s,
        options=connection.options,
    ) as consumer:
        return {
            keys[marker.key]
            for marker in consumer
            if marker.key in keys and marker.value is not None
        }


def create_marker_topic(admin: Admin, topic: str) -> None:
    """Create the topic of markers, with as many replicas as the dead-letter topic."""
    markers = redriven_topic(topic)
    if markers in admin.topics.names():
        return
    replicas = admin.topics.get(topic).replication_factor
    try:
        admin.topics.create(
            markers,
            partitions=1,
            replication_factor=replicas,
            configs={"cleanup.policy": "compact"},
        )
    except TopicExists:
        return


def _key(redelivery: Redelivery) -> bytes:
    return json.dumps([redelivery.to, *redelivery.record]).encode()

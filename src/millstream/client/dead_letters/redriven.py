"""Remember which records were sent back, in the compacted topic ``<dead-letter topic>.redriven``.

A note is written in the transaction that sends its record. The position of the redrive group cannot do this: another reader may write a
letter about the same record later, or a letter may be put back behind the position.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from millstream.client.consumer import Consumer
from millstream.client.dead_letters.decisions import LetterPlace, Once
from millstream.client.dead_letters.letters import redriven_topic
from millstream.client.errors import TopicExists

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin


def note_of(once: Once, letter: LetterPlace) -> tuple[bytes, bytes]:
    """Key and value of the note that a record was sent back."""
    value = {"dead_letter": {"partition": letter.partition, "offset": letter.offset}}
    return _key(once), json.dumps(value).encode()


def remembered(admin: Admin, topic: str, wanted: Collection[Once]) -> set[Once]:
    """Those of these records that were sent back out of a dead-letter topic before."""
    notes = redriven_topic(topic)
    if not wanted or notes not in admin.topics.names():
        return set()
    keys = {_key(once): once for once in wanted}
    connection = admin.connection
    with Consumer(
        connection.bootstrap,
        notes,
        until_end=True,
        timeout_s=connection.timeout_s,
        options=connection.options,
    ) as consumer:
        return {keys[note.key] for note in consumer if note.key in keys and note.value is not None}


def create_notes(admin: Admin, topic: str) -> None:
    """Create the topic of notes, with as many replicas as the dead-letter topic."""
    notes = redriven_topic(topic)
    if notes in admin.topics.names():
        return
    replicas = admin.topics.get(topic).replication_factor
    try:
        admin.topics.create(
            notes, partitions=1, replication_factor=replicas, configs={"cleanup.policy": "compact"}
        )
    except TopicExists:
        return


def _key(once: Once) -> bytes:
    return json.dumps([once.to, *once.record]).encode()

"""The ids of a broker's data directories in the metadata (KIP-858)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from millstream.cluster.membership.identity import UNREADABLE
from millstream.control import znodes
from millstream.ports.coordination import ConnectionLost, Coordination, Put, SessionExpired

log = logging.getLogger("millstream.directories")

_RETRY_S = 0.2


async def expected_directories(coordination: Coordination, node_id: int) -> list[str]:
    """Return the ids of the directories that must not be missing: none if the broker has no
    replicas.

    A broker that was removed, and comes back under its old id, has none.
    """
    known = await _read(coordination, node_id)
    return known if known and await _has_replicas(coordination, node_id) else []


async def _has_replicas(coordination: Coordination, node_id: int) -> bool:
    while True:
        try:
            topics = await coordination.children(znodes.TOPICS)
        except (ConnectionLost, SessionExpired) as error:
            log.info("cannot read the topics: %s", error)
            await asyncio.sleep(_RETRY_S)
            continue
        return any(_hosts(node.data, node_id) for node in topics.values())


def _hosts(data: bytes, node_id: int) -> bool:
    try:
        _topic_id, replicas, _moving = znodes.decode_topic(data)
    except UNREADABLE:
        return False
    return any(node_id in nodes for nodes in replicas.values())


async def _read(coordination: Coordination, node_id: int) -> list[str]:
    """Return the ids that the broker had at its last start; none for a new broker."""
    while True:
        try:
            node = await coordination.get(znodes.directories_path(node_id))
            return znodes.decode_directories(node.data) if node is not None else []
        except UNREADABLE as error:
            log.warning("cannot read the data directories of broker %d: %r", node_id, error)
            return []
        except (ConnectionLost, SessionExpired) as error:
            log.info("cannot read the data directories of broker %d yet: %s", node_id, error)
            await asyncio.sleep(_RETRY_S)


async def store_directories(coordination: Coordination, node_id: int, ids: Iterable[str]) -> None:
    """Store the ids of the broker's directories if they have changed."""
    new_ids = sorted(ids)
    while sorted(await _read(coordination, node_id)) != new_ids:
        try:
            await coordination.multi(
                [Put(znodes.directories_path(node_id), znodes.encode_directories(new_ids))]
            )
        except (ConnectionLost, SessionExpired) as error:
            log.info("cannot store the data directories of broker %d yet: %s", node_id, error)
            await asyncio.sleep(_RETRY_S)

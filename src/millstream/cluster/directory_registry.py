"""The ids of a broker's data directories in the metadata (KIP-858)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from millstream.cluster.cluster_identity import UNREADABLE
from millstream.control import znodes
from millstream.ports.coordination import ConnectionLost, Coordination, Put, SessionExpired

log = logging.getLogger("millstream.directories")

_RETRY_S = 0.2


async def read_directories(coordination: Coordination, node_id: int) -> list[str]:
    """Return the ids that the broker had at its last start; none for a new broker."""
    while True:
        try:
            node = await coordination.get(znodes.directories_path(node_id))
            return znodes.decode_directories(node.data) if node is not None else []
        except UNREADABLE as error:
            log.warning("the data directories of broker %d cannot be read: %r", node_id, error)
            return []
        except (ConnectionLost, SessionExpired) as error:
            log.info("the data directories of broker %d cannot be read now: %s", node_id, error)
            await asyncio.sleep(_RETRY_S)


async def note_directories(coordination: Coordination, node_id: int, ids: Iterable[str]) -> None:
    """Keep the ids of the broker's directories, if they have changed."""
    wanted = sorted(ids)
    while sorted(await read_directories(coordination, node_id)) != wanted:
        try:
            await coordination.multi(
                [Put(znodes.directories_path(node_id), znodes.encode_directories(wanted))]
            )
        except (ConnectionLost, SessionExpired) as error:
            log.info("the data directories of broker %d cannot be noted now: %s", node_id, error)
            await asyncio.sleep(_RETRY_S)

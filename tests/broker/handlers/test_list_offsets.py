"""ListOffsets by timestamp, while leadership changes during the search (KIP-207)."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replicas.test_manager_elected_while_truncating import HERE, OTHER, TP, World
from millstream.broker.handlers import list_offsets
from millstream.core.errors import ErrorCode
from millstream.log.partition_log import PartitionLog
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from millstream.wire.records.batch import Record, build_batch


def test_leader_change_during_timestamp_search_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deposed leader may lack committed records.

    After "nothing found", a client would skip them.
    """

    async def story() -> None:
        world = World()
        await world.led()
        raw = build_batch([Record(0, 100, None, b"acknowledged by the leader before")])
        world.replicas.leader(*TP).append(memoryview(bytearray(raw)), now_ms=0, needs_all=False)
        await world.state(HERE, 3)
        go, search = threading.Event(), PartitionLog.timestamp_search

        def slow(log: PartitionLog, timestamp: int | None) -> Any:
            found = search(log, timestamp)
            return lambda: go.wait(120) and found()

        monkeypatch.setattr(PartitionLog, "timestamp_search", slow)
        broker: Any = SimpleNamespace(replicas=world.replicas)
        context: Any = SimpleNamespace(version=7)
        row = ListOffsetsPartition(partition_index=0, timestamp=50)
        searching = asyncio.create_task(
            list_offsets._search_partition(broker, context, ListOffsetsRequest(), TP.topic, row)
        )
        await asyncio.sleep(0.05)
        await world.state(OTHER, 4)
        go.set()
        assert (await searching).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())

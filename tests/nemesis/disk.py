"""The logs of brokers that have stopped, read from their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.sim.checks import observe
from millstream.sim.checks.state_checks import Batch, Replica
from millstream.wire.records.batch import parse_header
from nemesis.records import decode


def replicas(
    directories: Mapping[int, Path], topics: Mapping[str, int], leaders: Mapping[str, int]
) -> dict[str, list[Replica]]:
    """Every replica of these topics (name -> number of partitions), by ``topic-partition``; the
    leader's first, or where nobody knows who led, the longest.
    """
    found = {}
    for key in (f"{topic}-{number}" for topic, count in topics.items() for number in range(count)):
        logs = [
            replica(node, path / key) for node, path in directories.items() if (path / key).is_dir()
        ]
        found[key] = sorted(
            logs, key=lambda log: (log.node != leaders.get(key), -log.high_watermark)
        )
    return found


def replica(node: int, directory: Path) -> Replica:
    """Nothing is written to it any more and all are in sync: all of it is below
    the high watermark.
    """
    batches = [batch for path in sorted(directory.glob("*.log")) for batch in _segment(path)]
    end = batches[-1].last_offset + 1 if batches else 0
    return Replica(node, end, 0, tuple(batches))


def _segment(path: Path) -> list[Batch]:
    data = memoryview(path.read_bytes())
    batches, start = [], 0
    while start < len(data):
        size = parse_header(data, start).size
        batch = observe.decode(data[start : start + size])
        batches.append(batch._replace(values=tuple(map(decode, batch.values))))
        start += size
    return batches

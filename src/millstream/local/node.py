"""A process of a local cluster as its supervisor sees it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from millstream.local.cluster_file import Entry
from millstream.local.process import LocalProcess


@dataclass(slots=True)
class LocalNode:
    """A process of the cluster, its entry in the file, and its last known state."""

    kind: str  # broker or zookeeper
    entry: Entry
    process: LocalProcess
    mode: str = ""  # of ZooKeeper only: leader, follower or standalone
    tail: str = ""
    can_start_again: bool = True  # False if its death shuts the cluster down
    spawned_s: float = 0.0
    stop_requested_s: float = 0.0
    probe: Future[str | None] | None = field(default=None, repr=False)
    probed_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.entry.node_id}"

"""Watches the cluster through ZooKeeper while it is under fire: who leads, who is in sync, who is
the controller; and counts what changes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from typing import Any, NamedTuple, TextIO

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

_EVERY_S = 0.25


class State(NamedTuple):
    """A partition as ZooKeeper has it."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    version: int


class Watch:
    """Looks again and again, in a thread of its own; what it missed between two looks, versions and
    epochs tell.
    """

    def __init__(self, hosts: str, activity: Counter[str], timeline: TextIO) -> None:
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self._client = KazooClient(hosts, timeout=10)
        self._activity = activity
        self._timeline = timeline
        self.partitions: dict[str, State] = {}
        self.controller: int | None = None
        self._controller_epoch = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._client.start(timeout=60)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(15)
        with contextlib.suppress(Exception):
            self._client.stop()

    def in_sync(self, replicas: int) -> bool:
        return bool(self.partitions) and all(
            len(state.isr) == replicas and state.leader >= 0 for state in self.partitions.values()
        )

    def leaders(self) -> dict[str, int]:
        return {key: state.leader for key, state in self.partitions.items()}

    def leader(self, key: str) -> int | None:
        state = self.partitions.get(key)
        return state.leader if state is not None else None

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._look()
            except (KazooException, KazooTimeoutError, OSError):
                pass  # ZooKeeper is away, as it is meant to be now and then
            self._over.wait(_EVERY_S)

    def _look(self) -> None:
        for topic in self._client.get_children("/chaos/brokers/topics"):
            try:
                numbers = self._client.get_children(f"/chaos/brokers/topics/{topic}/partitions")
                for number in numbers:
                    self._partition(topic, number)
            except NoNodeError:
                continue
        try:
            self.controller = json.loads(self._client.get("/chaos/controller")[0])["brokerid"]
        except NoNodeError:
            self.controller = None
        epoch = int(self._client.get("/chaos/controller_epoch")[0])
        if epoch != self._controller_epoch:
            self._activity["controllers"] += (
                epoch - self._controller_epoch if self._controller_epoch else 0
            )
            self._controller_epoch = epoch
            self._tell(f"controller {self.controller} in epoch {epoch}")

    def _partition(self, topic: str, number: str) -> None:
        data, stat = self._client.get(f"/chaos/brokers/topics/{topic}/partitions/{number}/state")
        row: dict[str, Any] = json.loads(data)
        key = f"{topic}-{number}"
        state = State(row["leader"], row["leader_epoch"], tuple(row["isr"]), stat.version)
        before = self.partitions.get(key)
        self.partitions[key] = state
        if before is not None and before != state:
            elections = state.epoch - before.epoch
            self._activity["elections"] += elections
            self._activity["isr changes"] += max(state.version - before.version - elections, 0)
            self._tell(f"{key} leader {state.leader} epoch {state.epoch} isr {list(state.isr)}")

    def _tell(self, what: str) -> None:
        self._timeline.write(f"{time.monotonic():.3f} {what}\n")

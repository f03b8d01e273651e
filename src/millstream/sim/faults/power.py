"""Power cuts: which machines may lose their power without losing acknowledged records.

In Kafka, records are lost if the last replica in sync loses its unflushed end (KIP-966). A nemesis
avoids that case, and a run in which it happened anyway is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.world.machines import World
from millstream.sim.world.zookeeper import SimZooKeeper

LAST_LOST_POWER = "last in sync lost its power"


class PowerCuts:
    """Power cuts of brokers that flush before they acknowledge: always allowed."""

    def allowed(self, broker: SimBroker) -> bool:
        """Return whether the broker may lose its power now."""
        return True

    def crash(self, broker: SimBroker) -> None:
        broker.crash()


class ReplicatedPowerCuts(PowerCuts):
    """Power cuts of brokers that rely on their replicas.

    Follows the ISR of every partition in ZooKeeper, and which brokers lost the end of its log.
    """

    def __init__(self, world: World, zookeeper: SimZooKeeper, brokers: Sequence[SimBroker]) -> None:
        self._world = world
        self._isr: dict[str, list[int]] = {}
        # By node: partitions of which it lost the end, until it has left their ISR.
        self._lossy: dict[int, set[str]] = {broker.node_id: set() for broker in brokers}
        zookeeper.on_write.append(self._written)

    def _written(self, path: str, data: bytes | None) -> None:
        if data is None:
            for gone in [known for known in self._isr if known.startswith(path + "/")]:
                del self._isr[gone]
                for paths in self._lossy.values():
                    paths.discard(gone)
        elif path.endswith("/state"):
            state = json.loads(data)
            before = self._isr.get(path, [])
            if (
                before
                and all(path in self._lossy[node] for node in before)
                and state["leader"] in before
            ):
                # The sessions of all others ended after its power was cut and before that was
                # noticed. Only eligible leader replicas (KIP-966) could help.
                self._world.log(
                    "nemesis", f"{path} is led by the last in sync, which lost its power"
                )
                self._world.activity[LAST_LOST_POWER] += 1
            self._isr[path] = state["isr"]
            for node, paths in self._lossy.items():
                if node not in self._isr[path]:
                    paths.discard(path)

    def allowed(self, broker: SimBroker) -> bool:
        """Return whether every partition has another replica in sync that has lost nothing."""
        return all(
            any(node != broker.node_id and path not in self._lossy[node] for node in isr)
            for path, isr in self._isr.items()
        )

    def crash(self, broker: SimBroker) -> None:
        in_sync = (path for path, isr in self._isr.items() if broker.node_id in isr)
        self._lossy[broker.node_id].update(in_sync)
        broker.crash()

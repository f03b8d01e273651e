"""A whole broker inside the simulation.

It is started, stopped, killed, crashed and paused, and started again on what its disk kept.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from millstream.broker.app import Broker, StartError
from millstream.core.config import BrokerConfig
from millstream.core.settings import SettingError
from millstream.ports.coordination import Coordination
from millstream.sim.world.disk import MountedDisk, no_fault
from millstream.sim.world.loop import ProcessDied, across
from millstream.sim.world.machines import Process, World
from millstream.sim.world.workers import workers_on

PORT = 9092


class SimBroker:
    """One broker on its machine. Other processes call its methods, for example the nemesis."""

    def __init__(
        self,
        world: World,
        node_id: int,
        settings: Mapping[str, object],
        *,
        coordination: Callable[[Process], Awaitable[Coordination]] | None = None,
    ) -> None:
        self.world = world
        self.node_id = node_id
        self.host = f"broker-{node_id}"
        self.machine = world.machine(self.host)
        self.broker: Broker | None = None
        self.process: Process | None = None
        self._mounted: MountedDisk | None = None
        self._coordination = coordination
        self.on_self_shutdown: Callable[[SimBroker], None] | None = None
        self._bad_disk = False  # at any time since its start
        self._config = {
            "node.id": node_id,
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            "advertised.listeners": f"PLAINTEXT://{self.host}:{PORT}",
            "log.dirs": "/data",
        } | dict(settings)

    @property
    def address(self) -> tuple[str, int]:
        return self.host, PORT

    @property
    def running(self) -> bool:
        """Whether there is a process. It may be paused, or still starting."""
        return self.process is not None and not self.process.loop.dead

    async def start(self) -> bool:
        """Start the broker. Return True once it serves, False if it was killed before.

        A start that fails on a healthy disk is an error of the run.
        """
        if self.running:
            return True
        process = self.process = self.machine.process()
        mounted = self._mounted = MountedDisk(self.machine.disk, process.clock.now_ms)
        self.world.log(self.host, "starts")
        self.world.activity["starts"] += 1
        self._bad_disk = not self.disk_is_healthy
        try:
            await across(process.loop, self._start(process, mounted))
        except ProcessDied:
            return False
        except (StartError, SettingError) as error:
            if not self._bad_disk:
                self.world.scheduler.errors.append(f"{self.host} does not start: {error}")
            if self.running:
                self.kill()
            return False
        self.world.log(self.host, "serves")
        return True

    async def _start(self, process: Process, mounted: MountedDisk) -> None:
        broker = Broker(
            BrokerConfig.from_texts({name: str(value) for name, value in self._config.items()}),
            files=mounted,
            clock=process.clock,
            network=process.network,
            coordination=await self._coordination(process)
            if self._coordination is not None
            else None,
            entropy=process.entropy,
            new_worker=workers_on(mounted),
        )
        self.broker = broker
        broker.failed.add_done_callback(lambda failed: self._failed(failed.result()))
        await broker.start()

    def _failed(self, reason: str) -> None:
        """Let the broker shut itself down, as it should with no directory left."""
        if not self._bad_disk:
            self.world.scheduler.errors.append(f"{self.host} shuts itself down: {reason}")
        elif self.running and self.on_self_shutdown is not None:
            self.world.log(self.host, f"shuts itself down: {reason}")
            self.world.activity["self shutdowns"] += 1
            self.world.scheduler.at(
                self.world.scheduler.now, self._end_after_self_shutdown, self.process
            )

    def _end_after_self_shutdown(self, process: Process) -> None:
        if process is self.process and self.running and self.on_self_shutdown is not None:
            self._end(process)
            self.machine.disk.kill()
            self.on_self_shutdown(self)

    async def stop(self) -> bool:
        """Shut down cleanly. Return False if the broker was killed before the end."""
        assert self.process is not None
        self.world.log(self.host, "stops")
        self.world.activity["stops"] += 1
        process = self.process
        try:
            if self.broker is not None:  # there is none while it waits for ZooKeeper
                await across(process.loop, self.broker.stop())
        except ProcessDied:
            return False
        self._end(process)
        self.machine.disk.kill()
        return True

    def kill(self) -> None:
        """Kill the process (kill -9): written data stays, in the page cache."""
        assert self.process is not None
        self.world.log(self.host, "is killed")
        self.world.activity["kills"] += 1
        process = self.process
        self._end(process)
        self.machine.disk.kill()

    def _end(self, process: Process) -> None:
        process.loop.kill()
        if self._mounted is not None:
            self._mounted.unmount()
        self.world.network.process_died(self.host)
        self.broker = None

    def crash(self) -> None:
        """Cut the power of the machine: unsynced data is lost or torn."""
        assert self.process is not None
        self.world.log(self.host, "crashes")
        self.world.activity["crashes"] += 1
        self.process.loop.kill()
        if self._mounted is not None:
            self._mounted.unmount()
        self.world.network.machine_died(self.host)
        self.machine.disk.crash()
        self.broker = None

    # -- the disk

    @property
    def disk_is_healthy(self) -> bool:
        return self.machine.disk.fault is no_fault

    @property
    def has_offline_directory(self) -> bool:
        """Whether a directory is offline, which it stays until the next start."""
        logs = self.broker.logs if self.broker is not None else None
        return logs is not None and not all(log_dir.online for log_dir in logs.dirs.values())

    @property
    def directories(self) -> list[str]:
        return str(self._config["log.dirs"]).split(",")

    def break_disk(
        self,
        error: Callable[[str], OSError],
        operations: Sequence[str],
        below: str = "/",
        dice: random.Random | None = None,
    ) -> None:
        """Let operations fail below a directory, until the disk is repaired.

        All of them fail, or with dice every other one.
        """
        every = "every" if dice is None else "every other"
        self.world.log(
            self.host, f"{error('').strerror} at {every} {', '.join(operations)} in {below}"
        )
        self.world.activity["disks broken"] += 1
        self._bad_disk = True

        def fault(operation: str, path: str) -> OSError | None:
            if operation not in operations or not f"{path}/".startswith(below):
                return None
            return error(path) if dice is None or dice.random() < 0.5 else None

        self.machine.disk.fault = fault

    def repair_disk(self) -> None:
        self.machine.disk.fault = no_fault

    # -- time

    def pause(self, seconds: float) -> None:
        assert self.process is not None
        self.world.log(self.host, f"is paused for {seconds:.1f} s")
        self.world.activity["pauses"] += 1
        self.process.loop.pause(seconds)

    def jump_clock(self, by_ms: int) -> None:
        assert self.process is not None
        self.world.log(self.host, f"has its clock changed by {by_ms} ms")
        self.world.activity["clock_jumps"] += 1
        self.process.jump_clock(by_ms)

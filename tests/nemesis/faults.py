"""The nemesis: kills, pauses, cuts and fills, one trouble or two at a time, with quiet times
between them; from one seed.

Which troubles come, and when, is decided in one thread; each is carried out in a thread of its own,
because some take their time. Everything it does is written to the timeline, beside what the cluster
made of it.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from millstream.local.process import LocalProcess, ProcessFailed
from nemesis.fleet import Clients, Fleet, LabBroker
from nemesis.lab import Host, pairs
from nemesis.watch import Watch

MOST_AT_ONCE = 2
_QUIET = 0.12  # how often everything is healed and left alone for a while
_READY_S = 120.0


class Nemesis:
    """``weights``: how often each kind comes.

    ``findings``: what went wrong that no client can see.
    """

    def __init__(
        self,
        fleet: Fleet,
        clients: Clients,
        watch: Watch,
        seed: int,
        activity: Counter[str],
        timeline: TextIO,
        *,
        pace_s: float = 4.0,
    ) -> None:
        self._fleet, self._clients, self._watch = fleet, clients, watch
        self._dice = random.Random(seed)
        self._activity, self._timeline = activity, timeline
        self._pace_s = pace_s
        self._busy: set[object] = set()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._wanted: set[LocalProcess] = {*fleet.brokers, *fleet.zookeepers}
        self.findings: list[str] = []
        self.kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            "kill": (7, self.kill),
            "kill quickly": (3, self.kill_quickly),
            "kill two": (2, self.kill_two),
            "kill all": (1, self.kill_all),
            "stop": (2, self.stop),
            "pause": (5, self.pause),
            "zookeeper kill": (3, self.zookeeper_kill),
            "zookeeper pause": (2, self.zookeeper_pause),
            "zookeeper no quorum": (1, self.zookeeper_no_quorum),
            "client kill": (3, self.client_kill),
            "client pause": (2, self.client_pause),
        }
        if fleet.lab.has_links:
            self.kinds |= {
                "cut two-way": (4, self.cut_two_way),
                "cut one-way": (4, self.cut_one_way),
                "cut from zookeeper": (4, self.cut_from_zookeeper),
                "cut from brokers": (4, self.cut_from_brokers),
                "cut from all": (2, self.cut_from_all),
                "cut from clients": (2, self.cut_from_clients),
                "cut zookeepers": (2, self.cut_zookeepers),
            }
        if any(broker.fillable for broker in fleet.brokers):
            self.kinds["full disk"] = (3, self.full_disk)

    # ---- the run ----

    def run(self, seconds: float, every: Callable[[], None], first: Sequence[str] = ()) -> None:
        """Troubles for so long; ``every`` is called again and again. ``first``: these, before the
        dice decide.
        """
        until = time.monotonic() + seconds
        due = time.monotonic()
        planned = list(first)
        while time.monotonic() < until:
            every()
            self._look()
            if time.monotonic() >= due and len(self._alive()) < MOST_AT_ONCE:
                if planned:
                    done = self.begin(planned[0])
                    planned = planned[1:] if done else planned
                    due = time.monotonic() + (self._pace_s / 2 if done else 0.5)
                elif self._dice.random() < _QUIET:
                    due = time.monotonic() + self._dice.uniform(5.0, 12.0)
                else:
                    self.begin(self._any())
                    due = time.monotonic() + self._dice.expovariate(1 / self._pace_s)
            time.sleep(0.05)

    def _any(self) -> str:
        weights = [weight for weight, _ in self.kinds.values()]
        return self._dice.choices(list(self.kinds), weights)[0]

    def begin(self, kind: str) -> bool:
        """False where nobody is there to be troubled that way now."""
        if kind not in self.kinds or not self.kinds[kind][1]():
            return kind not in self.kinds
        self._activity[f"nemesis {kind}"] += 1
        return True

    def heal(self) -> None:
        """The end of all trouble: whatever is on its way is undone now."""
        self.tell("heals everything")
        self._over.set()
        for thread in self._threads:
            thread.join(_READY_S + 60)
        self._look()

    def tell(self, what: str) -> None:
        self._timeline.write(f"{time.monotonic():.3f} NEMESIS {what}\n")

    def _alive(self) -> list[threading.Thread]:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return self._threads

    def _look(self) -> None:
        """Nobody ends who was not killed."""
        for process in list(self._wanted):
            if not process.running and process in self._wanted:
                self._wanted.discard(process)
                self.findings.append(
                    f"{process.directory.name} ended by itself, code {process.exit_code}"
                )

    def _launch(self, what: str, victims: Sequence[object], job: Callable[[], None]) -> None:
        self._busy.update(victims)
        self.tell(what)

        def run() -> None:
            try:
                job()
            except (ProcessFailed, OSError) as error:
                self.findings.append(f"{what}: {error}")
            finally:
                self.tell(f"over: {what}")
                self._busy.difference_update(victims)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self, seconds: float) -> None:
        self._over.wait(seconds)

    def _free(self, among: Sequence[LocalProcess]) -> list[LocalProcess]:
        return [process for process in among if process not in self._busy]

    # ---- brokers ----

    def _broker(self) -> LabBroker | None:
        """Whoever leads something, whoever is the controller, or anybody."""
        free = [broker for broker in self._fleet.brokers if broker not in self._busy]
        if not free:
            return None
        wish = self._dice.choice(("anybody", "leader", "controller"))
        node = self._watch.controller
        if wish == "leader" and self._watch.partitions:
            node = self._watch.leader(self._dice.choice(sorted(self._watch.partitions)))
        if wish != "anybody":
            free = [broker for broker in free if broker.node == node] or free
        return self._dice.choice(free)

    def _killed(self, processes: Sequence[LocalProcess], down_s: float) -> None:
        with self._unwanted(processes):
            for process in processes:
                process.kill()
            self._wait(down_s)
            for process in processes:
                process.spawn()
            for process in processes:
                self._supervise(process)

    def _supervise(self, process: LocalProcess) -> None:
        """A broker that finds no ZooKeeper when it starts gives up; whoever runs it starts it
        again.
        """
        until = time.monotonic() + _READY_S
        while True:
            try:
                process.wait_ready(_READY_S)
                return
            except ProcessFailed as error:
                if "no ZooKeeper answers" not in str(error) or time.monotonic() > until:
                    raise
                self._activity["starts without ZooKeeper"] += 1
                process.spawn()

    @contextmanager
    def _unwanted(self, processes: Sequence[LocalProcess]) -> Iterator[None]:
        self._wanted.difference_update(processes)
        try:
            yield
        finally:
            self._wanted.update(process for process in processes if process.running)

    def kill(self, down_s: float | None = None) -> bool:
        victim = self._broker()
        if victim is None:
            return False
        seconds = self._dice.uniform(1.0, 9.0) if down_s is None else down_s
        self._activity["kills"] += 1
        self._launch(
            f"kills {victim.on.name} for {seconds:.1f} s",
            [victim],
            lambda: self._killed([victim], seconds),
        )
        return True

    def kill_quickly(self) -> bool:
        """It is back before its session ends."""
        return self.kill(0.0)

    def kill_two(self) -> bool:
        return self._kill_many(2)

    def kill_all(self) -> bool:
        return self._kill_many(3)

    def _kill_many(self, count: int) -> bool:
        free = self._free(self._fleet.brokers)
        if len(free) < count:
            return False
        victims = self._dice.sample(free, count)
        seconds = self._dice.uniform(0.0, 6.0)
        self._activity["kills"] += count
        names = ", ".join(victim.directory.name for victim in victims)
        self._launch(
            f"kills {names} for {seconds:.1f} s", victims, lambda: self._killed(victims, seconds)
        )
        return True

    def stop(self) -> bool:
        victim = self._broker()
        if victim is None:
            return False

        def job() -> None:
            with self._unwanted([victim]):
                try:
                    victim.stop()
                except ProcessFailed:
                    self._activity["stops that took too long"] += (
                        1  # nobody to hand over to; it was killed
                    )
                self._wait(2.0)
                victim.spawn()
                self._supervise(victim)

        self._launch(f"stops {victim.on.name}", [victim], job)
        return True

    def pause(self) -> bool:
        victim = self._broker()
        if victim is None:
            return False
        return self._pause(victim, self._dice.choice((1.0, 4.0, 8.0, 14.0)))

    def _pause(self, victim: LocalProcess, seconds: float) -> bool:
        def job() -> None:
            victim.pause()
            self._wait(seconds)
            victim.resume()

        self._launch(f"pauses {victim.directory.name} for {seconds:.0f} s", [victim], job)
        return True

    def full_disk(self) -> bool:
        victims = [one for one in self._fleet.brokers if one.fillable and one not in self._busy]
        if not victims:
            return False
        victim = self._dice.choice(victims)
        seconds = self._dice.uniform(3.0, 12.0)

        def job() -> None:
            try:
                victim.fill()
                self._wait(seconds)
            finally:
                victim.drain()

        self._launch(f"fills the disk of {victim.on.name} for {seconds:.1f} s", [victim], job)
        return True

    # ---- ZooKeeper ----

    def zookeeper_kill(self) -> bool:
        free = self._free(self._fleet.zookeepers)
        if len(free) < 3:
            return False
        victim, seconds = self._dice.choice(free), self._dice.uniform(0.0, 8.0)
        self._activity["zookeeper kills"] += 1
        name = victim.directory.name
        self._launch(
            f"kills {name} for {seconds:.1f} s", [victim], lambda: self._killed([victim], seconds)
        )
        return True

    def zookeeper_pause(self) -> bool:
        free = self._free(self._fleet.zookeepers)
        return len(free) == 3 and self._pause(self._dice.choice(free), self._dice.uniform(2.0, 8.0))

    def zookeeper_no_quorum(self) -> bool:
        free = self._free(self._fleet.zookeepers)
        if len(free) < 3:
            return False
        victims, seconds = self._dice.sample(free, 2), self._dice.uniform(1.0, 8.0)
        self._activity["zookeeper kills"] += 2
        names = ", ".join(victim.directory.name for victim in victims)
        self._launch(
            f"kills {names} for {seconds:.1f} s", victims, lambda: self._killed(victims, seconds)
        )
        return True

    # ---- links ----

    def _cut(self, what: str, links: Sequence[tuple[Host, Host]]) -> bool:
        names = [(one.name, other.name) for one, other in links]
        if any(name in self._busy for name in names):
            return False
        seconds = self._dice.uniform(2.0, 14.0)
        self._activity["cuts"] += 1

        def job() -> None:
            try:
                for one, other in links:
                    self._fleet.lab.cut(one, other)
                self._wait(seconds)
            finally:
                for one, other in links:
                    self._fleet.lab.heal(one, other)

        self._launch(f"cuts {what} for {seconds:.1f} s", names, job)
        return True

    def _hosts(self) -> list[Host]:
        return [broker.on for broker in self._fleet.brokers]

    def cut_two_way(self) -> bool:
        one, other = self._dice.sample(self._hosts(), 2)
        return self._cut(f"{one.name} | {other.name}", [(one, other), (other, one)])

    def cut_one_way(self) -> bool:
        one, other = self._dice.sample(self._hosts(), 2)
        return self._cut(f"{one.name} -> {other.name}", [(one, other)])

    def cut_from_brokers(self) -> bool:
        """From the others, in one direction or both; ZooKeeper and clients are reached."""
        one = self._dice.choice(self._hosts())
        links = pairs([one], self._hosts())
        back = [(other, this) for this, other in links]
        arrow, chosen = self._dice.choice((("->", links), ("<-", back), ("|", links + back)))
        return self._cut(f"{one.name} {arrow} the other brokers", chosen)

    def cut_from_zookeeper(self) -> bool:
        one = self._dice.choice(self._hosts())
        links = pairs([one], [server.on for server in self._fleet.zookeepers])
        back = [(other, this) for this, other in links]
        arrow, chosen = self._dice.choice((("->", links), ("<-", back), ("|", links + back)))
        return self._cut(f"{one.name} {arrow} ZooKeeper", chosen)

    def cut_from_all(self) -> bool:
        one = self._dice.choice(self._hosts())
        servers = [server.on for server in self._fleet.zookeepers]
        links = pairs([one], [*self._hosts(), *servers, self._fleet.lab.clients])
        return self._cut(
            f"{one.name} | everything", links + [(other, this) for this, other in links]
        )

    def cut_from_clients(self) -> bool:
        """Only what it answers is lost: requests arrive."""
        one = self._dice.choice(self._hosts())
        clients = self._fleet.lab.clients
        links = [(one, clients)] if self._dice.random() < 0.7 else [(one, clients), (clients, one)]
        return self._cut(f"{one.name} {'->' if len(links) == 1 else '|'} clients", links)

    def cut_zookeepers(self) -> bool:
        one = self._dice.choice(self._fleet.zookeepers).on
        links = pairs([one], [server.on for server in self._fleet.zookeepers])
        return self._cut(
            f"{one.name} | the other servers", links + [(other, this) for this, other in links]
        )

    # ---- clients ----

    def client_kill(self) -> bool:
        slot = self._dice.choice(self._clients.slots)
        self.tell(f"kills {slot.name}")
        slot.signal(signal.SIGKILL)
        return True

    def client_pause(self) -> bool:
        """Long enough for a group to go on without it, or a transaction to be
        ended by its timeout.
        """
        slot = self._dice.choice(self._clients.slots)
        if slot.name in self._busy:
            return False
        seconds = self._dice.choice((2.0, 6.0, 13.0))

        def job() -> None:
            slot.signal(signal.SIGSTOP)
            self._wait(seconds)
            slot.signal(signal.SIGCONT)

        self._launch(f"pauses {slot.name} for {seconds:.0f} s", [slot.name], job)
        return True

"""Groups whose members are processes (``group_member.py``), and what their ledgers must say of
deliveries and commits.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Producer

from support.processes import wait_until

MEMBER = Path(__file__).with_name("group_member.py")
PATIENCE_S = 120.0


class Event(NamedTuple):
    """A row of a ledger."""

    what: str
    at: float
    content: Any


class MemberProcess:
    """One member; ``kill`` is a kill -9, ``leave`` a goodbye."""

    def __init__(self, ledger: Path, **options: Any) -> None:
        self.ledger = ledger
        words = json.dumps(options | {"ledger": str(ledger)})
        with ledger.with_suffix(".out").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(MEMBER), words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def events(self) -> list[Event]:
        if not self.ledger.exists():
            return []
        text = self.ledger.read_text()
        return [Event(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]

    def assignment(self) -> list[int] | None:
        """What it was last given; None while it has been given nothing. (A cooperative client tells
        of what is new only.)
        """
        found = [event.content for event in self.events() if event.what == "assigned"]
        return found[-1] if found else None

    def works(self, since: float) -> bool:
        """Whether it has read something since then."""
        assert self.running, self.output()
        return any(event.what == "read" and event.at > since for event in self.events())

    def output(self) -> str:
        return self.ledger.with_suffix(".out").read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self.output()

    @property
    def running(self) -> bool:
        return self._process.poll() is None


class Group:
    """Members of one group of one client; all that still run are killed at the end."""

    def __init__(
        self, directory: Path, bootstrap: str, topic: str, name: str, **options: Any
    ) -> None:
        self._directory = directory
        self._options = {"bootstrap": bootstrap, "topic": topic, "group": name} | options
        self.members: list[MemberProcess] = []

    def start(self, count: int = 1, **more: Any) -> MemberProcess:
        for _ in range(count):
            ledger = self._directory / f"{self._options['group']}-{len(self.members)}.jsonl"
            self.members.append(MemberProcess(ledger, **(self._options | more)))
        return self.members[-1]

    def live(self) -> list[MemberProcess]:
        return [member for member in self.members if member.running]

    def values(self) -> set[str]:
        return {
            row[2]
            for m in self.members
            for e in m.events()
            if e.what == "read"
            for row in e.content
        }

    def wait_for(self, wanted: set[str]) -> None:
        wait_until(lambda: self.values() >= wanted, "every record to be read", PATIENCE_S)

    def wait_for_work(self, *members: MemberProcess) -> None:
        """Until each has read something from now on; the load must not end meanwhile."""
        since = time.monotonic()
        for member in members or self.live():
            wait_until(lambda m=member: m.works(since), "a member to get work", PATIENCE_S)  # type: ignore[misc]

    def check(self, produced: dict[tuple[int, int], str]) -> None:
        """Everything at least once, as it was written; nothing again that was committed when its
        reader came.
        """
        read = [
            (tuple(row[:2]), row[2])
            for member in self.members
            for event in member.events()
            if event.what == "read"
            for row in event.content
        ]
        assert set(read) == set(produced.items())
        assert repeated_after_commit([member.events() for member in self.members])[:5] == []

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.live():
            member.kill()


def repeated_after_commit(ledgers: list[list[Event]]) -> list[str]:
    """Deliveries below an offset that was already committed when the partition was given to the
    reader.
    """
    commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for events in ledgers:
        for event in events:
            if event.what == "committed":
                for partition, end in event.content.items():
                    commits[int(partition)].append((event.at, end))
    wrong = []
    for number, events in enumerate(ledgers):
        since: dict[int, float] = {}
        for event in events:
            if event.what == "assigned":
                since |= dict.fromkeys(event.content, event.at)
            elif event.what == "read":
                for partition, offset, _ in event.content:
                    given = since.get(partition, event.at)
                    done = max((end for at, end in commits[partition] if at < given), default=0)
                    if offset < done:
                        wrong.append(
                            f"member {number} got {partition}@{offset} again, {done} was committed"
                        )
    return wrong


class Load:
    """Numbered records until it is stopped; knows where each was written."""

    def __init__(self, bootstrap: str, topic: str, pause_s: float = 0.01) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0})
        self._topic = topic
        self._pause_s = pause_s
        self.produced: dict[tuple[int, int], str] = {}
        self._failed: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(self._pause_s):
            for _ in range(8):
                self._producer.produce(
                    self._topic, b"%d" % number, b"%d" % number, on_delivery=self._note
                )
                number += 1
            self._producer.poll(0)

    def _note(self, error: object, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))
        else:
            self.produced[message.partition(), message.offset()] = message.value().decode()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def finish(self) -> dict[tuple[int, int], str]:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0 and self._failed == []
        return self.produced

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

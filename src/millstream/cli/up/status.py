"""The output of ``millstream up``: a live table on a terminal, else a line or JSON per change."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from millstream.cli.support.table import BOLD_RED, GREEN, YELLOW, Cell, Live, Table, terminal_size
from millstream.local.cluster_file import BROKER, State
from millstream.local.node import LocalNode

_TAIL_LINES = 15
_COLOURS = {State.UP: GREEN, State.DEAD: BOLD_RED, State.SILENT: YELLOW}


class Status:
    """Plain lines, for pipes and logs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def changed(self, node: LocalNode) -> None:
        self.say(line(node))
        if node.entry.state is State.DEAD:
            self.say(death(node))

    def ready(self, facts: dict[str, Any]) -> None:
        self.say(
            f"ready: {facts['bootstrap']}, ZooKeeper {facts['zookeeper_connect']}, {facts['seconds']:.1f} s"
        )

    def remark(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        print(text, flush=True)


class JsonStatus(Status):
    """One JSON object per line; ``event`` is its type."""

    def changed(self, node: LocalNode) -> None:
        entry = node.entry
        row: dict[str, Any] = {
            "event": "died" if entry.state is State.DEAD else "state",
            "kind": node.kind,
            "node_id": entry.node_id,
            "state": entry.state.value,
            "pid": entry.pid,
            "host": entry.host,
            "port": entry.port,
        }
        if node.mode and entry.state is State.UP:
            row["mode"] = node.mode
        if entry.state is State.DEAD:
            row |= {
                "exit_code": node.process.exit_code,
                "log": entry.log,
                "tail": node.tail.splitlines()[-_TAIL_LINES:],
            }
        self.say(json.dumps(row))

    def ready(self, facts: dict[str, Any]) -> None:
        self.say(json.dumps({"event": "ready"} | facts))

    def remark(self, text: str) -> None:
        self.say(json.dumps({"event": "remark", "text": text}))


class LiveStatus(Status):
    """A live table on a terminal; messages appear above it."""

    def __init__(self, nodes: Callable[[], list[LocalNode]]) -> None:
        self._nodes = nodes
        self._live = Live()

    def _lines(self) -> list[str]:
        table = Table("", "address", "pid", "state", "log", ruled=True)
        for node in self._nodes():
            entry = node.entry
            state = Cell(_state(node), _COLOURS.get(entry.state, ""))
            table.add(
                node.name, entry.address, str(entry.pid or "-"), state, os.path.relpath(entry.log)
            )
        return table.lines(terminal_size().columns, colour=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(self._lines())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def changed(self, node: LocalNode) -> None:
        if node.entry.state is State.DEAD:
            self.say(death(node))
        self._live.update(self._lines())

    def remark(self, text: str) -> None:
        self.say(text)
        self._live.update(self._lines())

    def say(self, text: str) -> None:
        self._live.print_above(f"{text}\n")


def status_for(format_json: bool, nodes: Callable[[], list[LocalNode]]) -> Status:
    if format_json:
        return JsonStatus()
    return LiveStatus(nodes) if sys.stdout.isatty() else Status()


def line(node: LocalNode) -> str:
    """Return a line with name, address, pid and state of a process."""
    entry = node.entry
    return f"{node.name:<12} {entry.address:<16} {f'pid {entry.pid}' if entry.pid else '-':<12} {_state(node)}"


def _state(node: LocalNode) -> str:
    state = node.entry.state
    if state is State.DEAD:
        return f"died ({_exit_reason(node.process.exit_code)})"
    if state is State.SILENT:
        return "not responding"
    return f"{state.value} ({node.mode})" if node.mode and state is State.UP else state.value


def _exit_reason(code: int | None) -> str:
    if code is None:
        return "not started"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def death(node: LocalNode) -> str:
    """Return a report of a dead process: its last output and how to restart it."""
    tail = "\n".join(f"  | {text}" for text in node.tail.splitlines()[-_TAIL_LINES:])
    reason = _exit_reason(node.process.exit_code)
    report = f"{node.name} died ({reason}); the end of {os.path.relpath(node.entry.log)}:\n{tail}"
    if not node.can_start_again:
        return report
    name = node.entry.node_id if node.kind == BROKER else f"{node.kind}-{node.entry.node_id}"
    return f"{report}\n  start it again: millstream up --start {name} --data {_directory(node)}"


def _directory(node: LocalNode) -> str:
    """Return the directory of the cluster, quoted for a shell."""
    return shlex.quote(os.path.relpath(node.process.directory.parent))

"""What ``millstream up`` shows: a table that changes on a terminal, a line for each change in a pipe, or the same as JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millstream.local.cluster import Part
from millstream.local.cluster_file import BROKER, State

if TYPE_CHECKING:
    from rich.table import Table

_TAIL_LINES = 15
_COLOURS = {State.UP: "green", State.DEAD: "bold red", State.SILENT: "yellow"}


class Status:
    """Lines, for pipes and logs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def told(self, part: Part) -> None:
        self.say(line(part))
        if part.entry.state is State.DEAD:
            self.say(death(part))

    def ready(self, words: dict[str, Any]) -> None:
        self.say(
            f"ready: {words['bootstrap']}, ZooKeeper {words['zookeeper_connect']}, {words['seconds']:.1f} s"
        )

    def remark(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        print(text, flush=True)


class JsonStatus(Status):
    """One JSON object a line; ``event`` says which."""

    def told(self, part: Part) -> None:
        entry = part.entry
        row: dict[str, Any] = {
            "event": "died" if entry.state is State.DEAD else "state",
            "kind": part.kind,
            "node_id": entry.node_id,
            "state": entry.state.value,
            "pid": entry.pid,
            "host": entry.host,
            "port": entry.port,
        }
        if part.mode and entry.state is State.UP:
            row["mode"] = part.mode
        if entry.state is State.DEAD:
            row |= {
                "exit_code": part.process.exit_code,
                "log": entry.log,
                "tail": part.tail.splitlines()[-_TAIL_LINES:],
            }
        self.say(json.dumps(row))

    def ready(self, words: dict[str, Any]) -> None:
        self.say(json.dumps({"event": "ready"} | words))

    def remark(self, text: str) -> None:
        self.say(json.dumps({"event": "remark", "text": text}))


class LiveStatus(Status):
    """A table on a terminal; what is said stands above it."""

    def __init__(self, parts: Callable[[], list[Part]]) -> None:
        from rich.live import Live

        self._parts = parts
        self._live = Live(self._table(), auto_refresh=False)

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table

        table = Table("", "address", "pid", "state", "log", box=box.SIMPLE_HEAD, pad_edge=False)
        for part in self._parts():
            entry = part.entry
            colour = _COLOURS.get(entry.state, "")
            state = f"[{colour}]{_words(part)}[/]" if colour else _words(part)
            table.add_row(part.name, entry.address, str(entry.pid or "-"), state, os.path.relpath(entry.log))
        return table

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def told(self, part: Part) -> None:
        if part.entry.state is State.DEAD:
            self.say(death(part))
        self._live.update(self._table(), refresh=True)

    def remark(self, text: str) -> None:
        self.say(text)
        self._live.update(self._table(), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)


def status_for(format_json: bool, parts: Callable[[], list[Part]]) -> Status:
    if format_json:
        return JsonStatus()
    return LiveStatus(parts) if sys.stdout.isatty() else Status()


def line(part: Part) -> str:
    """One process: what, where, its pid and how it is."""
    entry = part.entry
    return (
        f"{part.name:<12} {entry.address:<16} {f'pid {entry.pid}' if entry.pid else '-':<12} {_words(part)}"
    )


def _words(part: Part) -> str:
    state = part.entry.state
    if state is State.DEAD:
        return f"died ({_exit_words(part.process.exit_code)})"
    if state is State.SILENT:
        return "does not answer"
    return f"{state.value} ({part.mode})" if part.mode and state is State.UP else state.value


def _exit_words(code: int | None) -> str:
    if code is None:
        return "not started"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def death(part: Part) -> str:
    """That a process died, what it said last, and what to do."""
    tail = "\n".join(f"  | {text}" for text in part.tail.splitlines()[-_TAIL_LINES:])
    told = f"{part.name} died ({_exit_words(part.process.exit_code)}); the end of {os.path.relpath(part.entry.log)}:\n{tail}"
    if not part.can_start_again:
        return told
    node = part.entry.node_id if part.kind == BROKER else f"{part.kind}-{part.entry.node_id}"
    return f"{told}\n  start it again: millstream up --start {node} --data {_directory(part)}"


def _directory(part: Part) -> str:
    """That of the cluster, as one types it."""
    return shlex.quote(os.path.relpath(part.process.directory.parent))

"""``millstream serve --ephemeral``: a broker for tests, on a free port, with temporary data.

It ends with its parent, even if the parent is killed. The kernel of Linux can signal the death of a
parent, but it means the thread that started the child: Go and Java end such threads while the
process lives. So the broker polls, which also works on macOS. The parent is gone if its process id
is no longer that of this process's parent. It is also gone if a pipe on standard input is closed at
the other end: that notices a test that was killed behind a wrapper such as a shell. Nothing is read
from standard input, because it may belong to another program.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from millstream.core.settings import Given, SettingError

if TYPE_CHECKING:
    from millstream.broker.app import Broker

# Settings that avoid delays, and files that no test needs.
QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.segment.delete.delay.ms": 0,
}
LISTENERS = "PLAINTEXT://127.0.0.1:0"
# Settings of a --config file that a temporary broker replaces: addresses and directories.
_REPLACED = (
    "listeners",
    "advertised.listeners",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "listener.security.protocol.map",
    "control.plane.listener.name",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
)
_DATA = ("log.dir", "log.dirs", "metadata.log.dir")
POLL_S = 0.25
_STDIN = 0


def ephemeral_settings(
    from_file: Mapping[str, Given], from_options: Mapping[str, Given]
) -> dict[str, Given]:
    """Return the settings of a temporary broker, without its data directory.

    A file may be that of a real broker, so its addresses and directories are replaced. The same
    settings of --set are contradictions or intended.
    """
    for name in _DATA:
        if name in from_options:
            raise SettingError(
                f"--ephemeral uses a temporary directory; remove {name}, or --ephemeral", name
            )
    if "zookeeper.connect" in from_file or "zookeeper.connect" in from_options:
        raise SettingError(
            "--ephemeral starts a single broker; remove zookeeper.connect, or --ephemeral",
            "zookeeper.connect",
        )
    defaults = {"listeners": LISTENERS, **QUICK}
    kept = {name: setting for name, setting in from_file.items() if name not in _REPLACED}
    quick = {name: Given(str(value), "--ephemeral") for name, value in defaults.items()}
    return quick | kept | dict(from_options)


class ParentWatch:
    """Calls ``on_gone`` with the reason once the process that started this one is gone."""

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._parent = os.getppid()
        self._stdin = _open_stdin()

    def start(self) -> None:
        """Check now and then, on the running event loop."""
        reason = self._reason()
        if reason:
            self._on_gone(reason)
        else:
            asyncio.get_running_loop().call_later(POLL_S, self.start)

    def _reason(self) -> str:
        if os.getppid() != self._parent:
            return f"the parent process {self._parent} has exited"
        if self._stdin is not None and _is_hung_up(self._stdin):
            return "standard input was closed"
        return ""


def _open_stdin() -> select.poll | None:
    """Return a poll object for standard input if it is a pipe with a writer, otherwise None.

    A pipe that has no writer at startup was closed on purpose, and says nothing about the parent.
    """
    try:
        mode = os.fstat(_STDIN).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return None
        poll = select.poll()
        # Linux always reports POLLHUP, but macOS only to those who ask for input.
        poll.register(_STDIN, select.POLLIN)
        return None if _is_hung_up(poll) else poll
    except (OSError, AttributeError):
        return None


def _is_hung_up(poll: select.poll) -> bool:
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def end_like_kill(broker: Broker) -> None:
    """End a broker whose data is not read again: no responses, no flush, no hand-over.

    The broker must be alone on its event loop.
    """
    broker.server.abort()
    # Let new tasks begin: cancelling them earlier would leave their coroutines unawaited.
    await asyncio.sleep(0)
    current = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not current]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await broker.abandon()

"""Effects that wait until the high watermark has passed the records of their decision."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from millstream.core.decisions import APPEND_ERRORS, Reply
from millstream.core.errors import ApiError, ErrorCode

Effects = tuple[Any, ...]


class HeldEffects:
    """The effects of one shard, in order of their offsets.

    A reply that waits too long is answered with an error: whether the records survive is not known
    yet, and the client may retry. All other effects keep waiting.
    """

    __slots__ = ("_send", "expiry", "queue")

    def __init__(self, send: Callable[[Effects], None]) -> None:
        self._send = send
        # Offset, effects, and until when their replies wait.
        self.queue: deque[tuple[int, Effects, float]] = deque()
        self.expiry: asyncio.TimerHandle | None = None

    def hold(self, offset: int, effects: Effects, timeout_s: float) -> None:
        """Keep effects until the high watermark has passed ``offset``."""
        self.queue.append((offset, effects, asyncio.get_running_loop().time() + timeout_s))

    def release(self, high_watermark: int) -> None:
        """Send the effects that the high watermark has passed."""
        queue = self.queue
        while queue and queue[0][0] < high_watermark:
            self._send(queue.popleft()[1])

    def schedule_expiry(self) -> None:
        """Schedule the expiry of the first reply that still waits.

        It may be due already if the loop was blocked.
        """
        deadlines = (until for _, effects, until in self.queue if any(map(_is_awaited, effects)))
        deadline = next(deadlines, None)
        if deadline is not None:
            self.expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self.expiry = None
        now_s = asyncio.get_running_loop().time()
        for _, effects, until in self.queue:
            if until > now_s:
                break
            for effect in effects:
                if _is_awaited(effect):
                    effect.to.set_exception(ApiError(APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT]))
        self.schedule_expiry()

    def close(self) -> None:
        """Cancel the expiry; the host fails the waiters itself."""
        if self.expiry is not None:
            self.expiry.cancel()


def _is_awaited(effect: Any) -> bool:
    return isinstance(effect, Reply) and not effect.to.done()

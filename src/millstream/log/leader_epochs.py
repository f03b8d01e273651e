"""The start offset of every leader epoch: how a follower finds where its log diverged (KIP-101).

The file `leader-epoch-checkpoint` is written when the log is flushed and when it is closed. Entries
that a crash loses lie above the recovery point, and are restored from the batches, each of which
carries its leader's epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from millstream.core.settings import LONG_MAX
from millstream.log.directories.checkpoints import format_entries, parse_entries
from millstream.log.integrity.checksums import Sum, summed

UNDEFINED: Final = (-1, -1)
_NO_ENTRIES: Final = format_entries(())


class LeaderEpochs:
    """Epochs and their start offsets, both increasing."""

    __slots__ = ("_saved", "changed", "epochs", "starts")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.changed = False  # the file may have to be rewritten
        self._saved: Sum | None = summed(_NO_ENTRIES)  # the sum of the file

    @classmethod
    def parse(cls, data: bytes, path: str) -> LeaderEpochs:
        """Parse the contents of the file. Raises CorruptFile."""
        cache = cls()
        for epoch, start in parse_entries(data, 2, path):
            cache.assign(int(epoch), int(start))
        cache.changed = False
        cache._saved = summed(data)
        return cache

    def take_unsaved(self, log_end_offset: int) -> bytes | None:
        """Return the new contents of the file, or None if it is up to date.

        An epoch without records is left out. The next start would drop it, and every idle partition
        would rewrite its file at every shutdown.
        """
        self.changed = bool(self.starts) and self.starts[-1] >= log_end_offset
        data = self.encode(below=log_end_offset)
        sum_ = summed(data)
        if sum_ == self._saved:
            return None
        self._saved = sum_
        return data

    @property
    def saved(self) -> Sum | None:
        """The sum of the file, once the data of `take_unsaved` is written."""
        return self._saved

    def not_saved(self) -> None:
        """Record that the data of `take_unsaved` did not reach the file."""
        self.changed, self._saved = True, None

    def encode(self, below: int = LONG_MAX) -> bytes:
        return format_entries(
            f"{epoch} {start}" for epoch, start in self.entries() if start < below
        )

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    @property
    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else -1

    def assign(self, epoch: int, start: int) -> None:
        """Record that a batch of this epoch begins here. Entries that contradict it are dropped."""
        if self.epochs and epoch == self.epochs[-1] and start >= self.starts[-1]:
            return
        while self.epochs and (self.epochs[-1] >= epoch or self.starts[-1] >= start):
            self.epochs.pop()
            self.starts.pop()
        self.epochs.append(epoch)
        self.starts.append(start)
        self.changed = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest known epoch up to the requested one.

        UNDEFINED if none is known.
        """
        if epoch < 0 or not self.epochs or epoch > self.epochs[-1]:
            return UNDEFINED
        if epoch == self.epochs[-1]:
            return epoch, log_end_offset
        slot = bisect_right(self.epochs, epoch)
        if slot == 0:
            # Older than all kept epochs: the follower continues where the kept log begins.
            return epoch, self.starts[0]
        return self.epochs[slot - 1], self.starts[slot]

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which the offset was (or will be) written; -1 if unknown."""
        slot = bisect_right(self.starts, offset)
        return self.epochs[slot - 1] if slot else -1

    def truncate_end(self, end_offset: int) -> None:
        keep = bisect_left(self.starts, end_offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self.changed = True

    def truncate_start(self, start_offset: int) -> None:
        """Drop entries before an offset. The epoch in force there is kept, and starts there."""
        slot = bisect_right(self.starts, start_offset)
        if slot and self.starts[slot - 1] < start_offset:
            del self.epochs[: slot - 1], self.starts[: slot - 1]
            self.starts[0] = start_offset
            self.changed = True
        elif slot > 1:
            del self.epochs[: slot - 1], self.starts[: slot - 1]
            self.changed = True

    def clear(self) -> None:
        self.changed = self.changed or bool(self.epochs)
        self.epochs.clear()
        self.starts.clear()

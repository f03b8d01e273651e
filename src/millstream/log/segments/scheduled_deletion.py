"""Files that are no longer part of a log, and are deleted later."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from millstream.core.types import TopicPartition
from millstream.ports.files import Files


class ScheduledDeletion(NamedTuple):
    """Files, or a directory, to be deleted at a time.

    Not before the checkpoint has `log_start`: otherwise the next start would report the files as
    lost.
    """

    due_ms: int
    log_dir: str
    paths: tuple[str, ...]
    tree: bool = False
    log_start: tuple[TopicPartition, int] | None = None

    def remove(self, files: Files) -> None:
        """Delete the files. Waits for the disk."""
        for path in self.paths:
            with suppress(FileNotFoundError):
                if self.tree:
                    files.rmtree(path)
                else:
                    files.unlink(path)

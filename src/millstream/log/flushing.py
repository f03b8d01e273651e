"""Making a log durable: the blocking half of a flush, run in a thread while the loop goes on appending."""

from __future__ import annotations

import os
from collections.abc import Sequence

from millstream.log import names
from millstream.ports.files import File, Files


class FlushJob:
    """Syncs what a log had written when the job was made. `offset` is the log end then."""

    __slots__ = ("_directory", "_epochs", "_files", "_logs", "_paths", "_sync_parent", "generation", "offset")

    def __init__(
        self,
        files: Files,
        directory: str,
        offset: int,
        generation: int,
        logs: Sequence[File],
        paths: Sequence[str],
        epochs: bytes | None,
        *,
        sync_parent: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self.offset = offset
        self.generation = generation
        self._logs = logs
        self._paths = paths
        self._epochs = epochs
        self._sync_parent = sync_parent

    def run(self) -> None:
        """Blocks. Files that were deleted meanwhile are passed over."""
        for log in self._logs:
            log.sync()
        for path in self._paths:
            self._sync(path)
        if self._epochs is not None:
            self._files.write_atomic(os.path.join(self._directory, names.LEADER_EPOCHS), self._epochs)
        self._files.sync_dir(self._directory)
        if self._sync_parent:
            self._files.sync_dir(os.path.dirname(self._directory))

    def _sync(self, path: str) -> None:
        try:
            if path == self._directory:
                return  # synced last in any case
            self._files.sync_file(path)
        except FileNotFoundError:
            pass

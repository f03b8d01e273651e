"""The relocations of a broker: in progress, interrupted, and the directories left behind.

Until the copy of a log is durable, its old directory stays. A crash then leaves both, and the next
start keeps the longer one. So the log must not be truncated below its end at the switch.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.replica_move import LeftBehind, ReplicaMove
from millstream.log.errors import StorageError
from millstream.log.state import LogState
from millstream.ports.files import Files


class ReplicaMoves:
    """`futures` are in progress.

    `left_behind` has the old directory of a log until its copy is durable.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.futures: dict[TopicPartition, ReplicaMove] = {}
        self.left_behind: dict[LogState, LeftBehind] = {}
        self.interrupted: list[tuple[TopicPartition, str]] = []

    def cancel(self, tp: TopicPartition) -> None:
        """Stop the relocation of a partition, if there is one."""
        move = self.futures.pop(tp, None)
        if move is not None:
            move.cancelled = True

    def directory_failed(self, path: str, partitions: Collection[TopicPartition]) -> None:
        """Stop relocations into a failed directory, and of the partitions in it."""
        for move in self.futures.values():
            move.cancelled = move.cancelled or path == move.log_dir or move.tp in partitions

    def check_truncation(self, log: LogState, offset: int) -> None:
        """Raise StorageError while the longer copy would win at the next start.

        It would bring back truncated records in the place of those appended since.
        """
        left = self.left_behind.get(log)
        if left is not None and offset < left.end_offset:
            raise StorageError(
                log.log_dir, f"{log.tp} is not truncated before its relocation is durable"
            )

    def rename_left_behind(self, log: LogState) -> str:
        """Mark the old directory as deleted.

        Return its data directory: sync it to make that durable.
        """
        left = self.left_behind[log]
        log_dir = os.path.dirname(left.directory)
        if not left.renamed:
            deleted = os.path.join(log_dir, file_names.directory_name(log.tp, "delete"))
            self._files.rename(left.directory, deleted)
            self.left_behind[log] = LeftBehind(deleted, left.end_offset, renamed=True)
        return log_dir

"""``cluster.json`` of a running cluster: the supervisor's state, and requests of other commands.

Problems with the file are reported but stop nothing, because the cluster runs without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.cluster_file import ClusterFile


class SupervisedFile:
    """Writes the state of a cluster, after reading requests that other commands have written."""

    def __init__(
        self, directory: Path, cluster: ClusterFile, on_remark: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._remark = on_remark
        self._known_mtime_ns = 0  # of the version of the file that this process has written
        self._problems: set[str] = set()  # reported since the last successful write

    @property
    def changed(self) -> bool:
        """Whether the file is not the version that this process has written."""
        return self._mtime_ns() != self._known_mtime_ns

    def save(self, take_requests: Callable[[ClusterFile], None] | None) -> None:
        """Write the file; requests in it are passed to ``take_requests`` first."""
        try:
            with cluster_file.locked(self._directory):
                requests = self._read() if take_requests is not None else None
                if take_requests is not None and requests is not None:
                    take_requests(requests)
                cluster_file.write(self._directory, self._cluster)
                self._known_mtime_ns = self._mtime_ns()
                self._problems.clear()
        except OSError as error:
            # So that the next poll tries again.
            self._known_mtime_ns = -1
            self._report_once(
                f"cannot write {self._directory / cluster_file.FILE}: {error.strerror}; the cluster "
                "continues, but --add, --start, --stop and --remove do not work"
            )

    def _read(self) -> ClusterFile | None:
        try:
            written = cluster_file.read(self._directory)
        except ClientError as error:
            self._report_once(f"{error.message}; it is rewritten, and the cluster continues")
            return None
        return written if written is not None and written.supervisor == os.getpid() else None

    def _mtime_ns(self) -> int:
        try:
            return (self._directory / cluster_file.FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def _report_once(self, text: str) -> None:
        """Report a problem once, until the file is written again."""
        if text not in self._problems:
            self._problems.add(text)
            self._remark(text)

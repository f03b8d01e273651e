"""Writes the state file of a run, which ``pipeline status`` reads (``status``)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from millstream.pipelines.declare import Pipeline
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.run.progress import Figures

INTERVAL_MS = 1000


class StatusFile:
    """The state file of one run."""

    def __init__(self, layout: Layout, options: RunOptions, started_ms: int) -> None:
        self._layout = layout
        self._options = options
        self._started_ms = started_ms
        self._written_ms = 0
        self._flows_with_batches: set[str] = set()

    def batch_done(self, flow: str) -> None:
        """Make the file due at the first batch of a flow, because readers wait for it."""
        if flow not in self._flows_with_batches:
            self._flows_with_batches.add(flow)
            self._written_ms = 0

    def is_due(self, now_ms: int) -> bool:
        return now_ms - self._written_ms >= INTERVAL_MS

    def write(
        self, pipeline: Pipeline, file: str, state: str, figures: Iterable[Figures], now_ms: int
    ) -> None:
        """Replace the file."""
        self._written_ms = now_ms
        self._layout.write_status(
            {
                "pipeline": pipeline.name,
                "file": file,
                "bootstrap": pipeline.bootstrap,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "state": state,
                "once": self._options.once,
                "restarts": len(self._options.restarts_ms or ()),
                "started_ms": self._started_ms,
                "updated_ms": now_ms,
                "flows": [flow._asdict() for flow in figures],
            }
        )

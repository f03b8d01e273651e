"""Where a pipeline keeps things: checkpoints, the lock, the state file that ``status`` reads.

<checkpoint>/<pipeline>/<flow>/          Spark's checkpoint of the flow
<checkpoint>/<pipeline>/.lock            held while the pipeline runs
<checkpoint>/<pipeline>/.status.json     written every second while it runs
<checkpoint>/<pipeline>/.inputs/<flow>   the topics that the flow read when its checkpoint was made
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from millstream.pipelines.declare import DEFAULT_CHECKPOINTS, Flow, Pipeline, Table
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.failures import CHANGED
from millstream.pipelines.graph import leaves


class Layout:
    """The files of one pipeline."""

    def __init__(self, name: str, checkpoint: str | None) -> None:
        self.root = Path(checkpoint or DEFAULT_CHECKPOINTS).absolute() / name
        self.lock = self.root / ".lock"
        self.status = self.root / ".status.json"

    @classmethod
    def of(cls, pipeline: Pipeline, checkpoint: str | None = None) -> Layout:
        return cls(pipeline.name, checkpoint or pipeline.checkpoint)

    def checkpoint(self, flow: str) -> Path:
        return self.root / flow

    def write_status(self, status: dict[str, Any]) -> None:
        """The whole file at once: whoever reads sees the old or the new."""
        self.root.mkdir(parents=True, exist_ok=True)
        aside = self.status.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(status))
        aside.rename(self.status)

    def read_status(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.status.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def check_inputs(self, pipeline: Pipeline, flow: Flow) -> None:
        """A checkpoint fits the topics that the flow read when it was made: others are told here, not by Spark."""
        now = streamed_topics(pipeline, flow)
        note = self.root / ".inputs" / flow.name
        if note.exists() and (self.checkpoint(flow.name) / "offsets").is_dir():
            before = json.loads(note.read_text())
            if before != now:
                raise PipelineError(
                    f"flow {flow.name}: {CHANGED[0]}: it read {', '.join(before)}, and now {', '.join(now)}",
                    hint=CHANGED[1],
                    place=flow.place,
                )
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(now))


def streamed_topics(pipeline: Pipeline, flow: Flow) -> list[str]:
    """The topics (and other origins) that a flow reads as streams, in the order of its inputs."""
    read = [one for one in leaves(pipeline, flow) if not isinstance(one, Table)]
    return [one.topics[0].topic if isinstance(one, Flow) else one.what for one in read]

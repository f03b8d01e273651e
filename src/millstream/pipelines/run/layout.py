"""The files of a pipeline: checkpoints, the lock, the state file that ``status`` reads.

<checkpoint>/<pipeline>/<flow>/               Spark's checkpoint of the flow
<checkpoint>/<pipeline>/<flow>/.starts.json   the start offsets of its streams (``start_offsets``)
<checkpoint>/<pipeline>/.lock                 held while the pipeline runs
<checkpoint>/<pipeline>/.status.json          written every second while it runs
<checkpoint>/<pipeline>/.inputs/<flow>        the topics that the flow reads
<checkpoint>/<pipeline>/.letters.json         the flow that writes the dead letters of each stream
<checkpoint>/<pipeline>/.failures.log         every failure of a flow with its traces
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.pipelines.declare import (
    DEAD_LETTER_PREFIX,
    DEFAULT_CHECKPOINTS,
    Flow,
    Pipeline,
    Table,
)
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.graph import leaves
from millstream.pipelines.run.failures import CHANGED

FAILURES = ".failures.log"


class Layout:
    """The files of one pipeline."""

    def __init__(self, name: str, checkpoint: str | None) -> None:
        self.root = Path(checkpoint or DEFAULT_CHECKPOINTS).absolute() / name
        self.lock = self.root / ".lock"
        self.status = self.root / ".status.json"
        self.dead_letters = self.root / ".letters.json"
        self.failures = self.root / FAILURES

    @classmethod
    def of(cls, pipeline: Pipeline, checkpoint: str | None = None) -> Layout:
        return cls(pipeline.name, checkpoint or pipeline.checkpoint)

    def checkpoint(self, flow: str) -> Path:
        return self.root / flow

    def has_started(self, flow: str) -> bool:
        """Return whether a flow has been started.

        A query for dead letters counts as started as soon as its start offsets are stored.
        """
        if (self.checkpoint(flow) / "offsets").is_dir():
            return True
        return flow.startswith(DEAD_LETTER_PREFIX) and bool(self.stored_starts(flow))

    def has_batch(self, flow: str) -> bool:
        """Return whether a flow has had a batch, so that Spark's checkpoint has its position."""
        return any((self.checkpoint(flow) / "offsets").glob("[0-9]*"))

    def stored_starts(self, flow: str) -> dict[str, Any]:
        """Return the stored start of each stream that a flow reads."""
        file = self._starts(flow)
        try:
            starts = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise PipelineError(
                f"{file} is damaged; it has the start offsets of flow {flow}",
                hint="restore it from a backup; deleting it may lose dead letters",
            ) from None
        return dict(starts)

    def store_starts(self, flow: str, starts: Mapping[str, Any]) -> None:
        self._write(self._starts(flow), starts, durable=True)

    def _starts(self, flow: str) -> Path:
        return self.checkpoint(flow) / ".starts.json"

    def write_status(self, status: dict[str, Any]) -> None:
        self._write(self.status, status)

    def dead_letter_owners(self) -> dict[str, str]:
        """Return the flow that writes each stream's dead letters, as stored by earlier runs."""
        try:
            owners = json.loads(self.dead_letters.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise PipelineError(
                f"{self.dead_letters} is damaged; "
                "it has the flow that writes the dead letters of each stream",
                hint="restore it from a backup; deleting it may repeat or lose dead letters",
            ) from None
        return {str(stream): str(flow) for stream, flow in owners.items()}

    def store_dead_letter_owners(self, owners: Mapping[str, str]) -> None:
        """Store owners, beside those that are stored already."""
        stored = self.dead_letter_owners()
        if any(stored.get(stream) != flow for stream, flow in owners.items()):
            self._write(self.dead_letters, {**stored, **owners}, durable=True)

    def _write(self, file: Path, content: Mapping[str, Any], *, durable: bool = False) -> None:
        """Replace the file atomically; with ``durable`` also across a power loss."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        with temporary.open("w") as output:
            output.write(json.dumps(content))
            if durable:
                output.flush()
                os.fsync(output.fileno())
        temporary.rename(file)

    def read_status(self) -> dict[str, Any] | None:
        try:
            status = json.loads(self.status.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return status if isinstance(status, dict) else None

    def check_inputs(self, pipeline: Pipeline, flow: Flow) -> None:
        """Reject a checkpoint that was made with other inputs, before Spark does."""
        now = streamed_topics(pipeline, flow)
        file = self.root / ".inputs" / flow.name
        if file.exists() and self.has_started(flow.name):
            stored_inputs = json.loads(file.read_text())
            if stored_inputs != now:
                raise PipelineError(
                    f"flow {flow.name}: {CHANGED[0]}: "
                    f"it read {', '.join(stored_inputs)}, and now reads {', '.join(now)}",
                    hint=CHANGED[1],
                    place=flow.place,
                )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(now))


def streamed_topics(pipeline: Pipeline, flow: Flow) -> list[str]:
    """Return the topics and other origins that a flow reads as streams, in order of its inputs."""
    read = [source for source in leaves(pipeline, flow) if not isinstance(source, Table)]
    return [source.topics[0].topic if isinstance(source, Flow) else source.what for source in read]

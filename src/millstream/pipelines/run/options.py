"""How to run a pipeline: the options of a run, and the function that gets its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STOP_TIMEOUT_S = 30.0

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run."""

    once: bool = False
    only: Sequence[str] = ()
    checkpoint: str | None = None
    reset_progress: bool = False
    stop_timeout_s: float = STOP_TIMEOUT_S
    independent: bool = False
    """Flows do not depend on each other: if one fails, the others continue.

    Without ``once`` a run without flows continues, because ``Run.change`` may add some.
    """
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that override those of the pipeline."""
    restarts_ms: tuple[int, ...] | None = None
    """Times of earlier restarts of the driver's JVM for this pipeline.

    ``Run.restart`` requests the next restart. None means that the caller cannot restart the JVM; an
    error of the JVM then fails the flow.
    """

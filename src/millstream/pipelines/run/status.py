"""The status of pipelines for other processes: the run's state file, and consumer group lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError, UnknownGroup
from millstream.pipelines.declare import DEFAULT_CHECKPOINTS
from millstream.pipelines.errors import PipelineError, nearest
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.locks import is_locked


def find_statuses(
    name: str | None,
    checkpoint: str | None,
    *,
    bootstrap: str | None = None,
    timeout_s: float = 10.0,
) -> list[dict[str, Any]]:
    """Return the pipelines below a directory, or the one with this file or name."""
    layouts = [_named(name, checkpoint)] if name else _below(checkpoint)
    statuses = [status for layout in layouts if (status := read(layout)) is not None]
    if name and not statuses:
        others = [path.name for path in _directories(checkpoint)]
        raise PipelineError(
            f"no run of {name} found below {layouts[0].root.parent}",
            hint=nearest(name, others) if others else "run it first, or pass its --checkpoint",
        )
    for status in statuses:
        _add_lag(status, bootstrap or status["bootstrap"], timeout_s)
    return statuses


def read(layout: Layout) -> dict[str, Any] | None:
    """Return the state that the last run wrote, corrected if the run was killed."""
    status = layout.read_status()
    if status is None:
        return None
    running = is_locked(layout.lock)
    if not running and status["state"] in ("running", "stopping", "restarting"):
        status["state"] = "killed"
    return status | {"running": running, "checkpoint": str(layout.root)}


def _named(name: str, checkpoint: str | None) -> Layout:
    if name.endswith(".py") or Path(name).is_file():
        from millstream.pipelines.load import load_pipeline

        pipeline = load_pipeline(name)
        return Layout.of(pipeline, checkpoint)
    return Layout(name, checkpoint)


def _below(checkpoint: str | None) -> list[Layout]:
    return [Layout(path.name, checkpoint) for path in _directories(checkpoint)]


def _directories(checkpoint: str | None) -> list[Path]:
    root = Path(checkpoint or DEFAULT_CHECKPOINTS)
    return sorted(path.parent for path in root.glob("*/.status.json"))


def _add_lag(status: dict[str, Any], bootstrap: str, timeout_s: float) -> None:
    """Replace the lag by that of the broker. If no broker answers, the written value stays."""
    try:
        with Admin(bootstrap, timeout_s=timeout_s) as admin:
            for flow in status["flows"]:
                flow["lag"] = group_lag(
                    admin, f"{status['pipeline']}.{flow['flow']}", flow.get("lag")
                )
    except ClientError:
        return


def group_lag(admin: Admin, group: str, otherwise: int | None) -> int | None:
    """Return the lag of a consumer group, or ``otherwise`` if it has none yet."""
    try:
        lags = [
            partition.lag for partition in admin.groups.lags(group) if partition.lag is not None
        ]
    except UnknownGroup:
        return otherwise
    return sum(lags) if lags else otherwise

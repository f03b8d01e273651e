"""Packages that only some connectors need: imported when one is used, and named with the command that installs them when missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from millstream.pipelines.errors import PipelineError

INSTALL = 'pip install "millstream[connect]"'


def need(module: str, what: str) -> Any:
    """A module of the extra ``connect``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{what} need the package {module.partition('.')[0]!r}, which is not installed ({error})",
            hint=INSTALL,
        ) from None

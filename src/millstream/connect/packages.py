"""Optional packages of connectors, imported on first use.

If one is missing, the error names the command that installs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from millstream.pipelines.errors import PipelineError

INSTALL = 'pip install "millstream[connect]"'


def need(module: str, feature: str) -> Any:
    """Import a module of the extra ``connect``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{feature} need the package {module.partition('.')[0]!r}, which is not installed ({error})",
            hint=INSTALL,
        ) from None

"""CRC-32C (Castagnoli) of version 2 batches, from the `crc32c` package.

The package's `__init__` reads its version through importlib.metadata, which takes 25 ms: a tenth of
the startup budget of a broker, and again in every child process. So only its extension module is
loaded.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Callable
from typing import Any

Crc32c = Callable[..., int]


def _extension() -> Any:
    package = importlib.machinery.PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = importlib.machinery.PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load() -> Crc32c:
    extension = _extension()
    if extension is None:
        import crc32c as extension
    function: Crc32c = extension.crc32c
    return function


crc32c: Crc32c = _load()

"""Value formats: JSON, Avro, Protobuf, CSV headers, plain text and bytes, to columns and back.

``value_format`` is loaded on first use: functions that are sent to Spark's workers import single
files of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.pipelines.formats.registry import value_format as value_format


def __getattr__(name: str) -> Any:
    if name != "value_format":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.pipelines.formats.registry import value_format

    return value_format

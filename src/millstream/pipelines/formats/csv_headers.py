"""Explains Spark's errors about CSV files whose header differs from the declared columns.

Spark finds them on an executor and only reports the number of columns. The names are read from the
file, and from the declaration of its directory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlparse

# Spark's messages for a header with other names, and for one with another number of columns.
_NAMES = re.compile(
    r"CSV header does not conform to the schema\.\s*Header: (.*?)\s*Schema: (.*?)\n.*?CSV file: (\S+)",
    re.S,
)
_NUMBER = re.compile(
    r"Number of column in CSV header is not equal to number of fields in the schema.*?CSV file: (\S+)",
    re.S,
)
MAX_HEADER_BYTES = 1000
MAX_CAUSES = 20
_declared: dict[str, tuple[str, ...]] = {}


def declare_header(directory: str, names: Sequence[str]) -> None:
    """Remember the columns of the files below a directory."""
    _declared[directory] = tuple(names)


def explain_header(error: BaseException) -> str | None:
    """Return the file and both headers that an error is about, or None for other errors."""
    text = _with_causes(error)
    if match := _NAMES.search(text):
        return _header_mismatch(match[3], match[1], match[2])
    if match := _NUMBER.search(text):
        path = unquote(urlparse(match[1]).path)
        above = [
            directory for directory in _declared if path.startswith(directory.rstrip("/") + "/")
        ]
        declared = ", ".join(_declared[max(above, key=len)]) if above else "other columns"
        return _header_mismatch(match[1], _first_line(path), declared)
    return None


def _with_causes(error: BaseException) -> str:
    """Return the text of an error and of the Java exceptions behind it."""
    texts = [str(error)]
    cause = getattr(error, "_cause", None)
    while cause is not None and len(texts) < MAX_CAUSES:
        texts.append(str(getattr(cause, "_desc", None) or cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def _header_mismatch(url: str, header: str, declared: str) -> str:
    path = unquote(urlparse(url).path)
    return (
        f"the header of {path} differs from the declared columns: "
        f"the file has {header}, declared are {declared}"
    )


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.readline(MAX_HEADER_BYTES).decode("utf-8-sig", "replace").strip()
    except OSError:
        return "another number of columns"

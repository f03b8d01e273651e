"""CSV files whose header differs from the declared columns: what Spark says about them, in words.

Spark finds out on an executor and only says how many columns there are. The names are read from the file, and
from what was declared for its directory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlparse

# Spark's words for a header with other names, and for one with another number of columns.
_NAMES = re.compile(
    r"CSV header does not conform to the schema\.\s*Header: (.*?)\s*Schema: (.*?)\n.*?CSV file: (\S+)", re.S
)
_NUMBER = re.compile(
    r"Number of column in CSV header is not equal to number of fields in the schema.*?CSV file: (\S+)", re.S
)
LONGEST_HEADER = 1000
MOST_CAUSES = 20
_declared: dict[str, tuple[str, ...]] = {}


def declare_header(directory: str, names: Sequence[str]) -> None:
    """Remember the columns of the files below a directory."""
    _declared[directory] = tuple(names)


def explain_header(error: BaseException) -> str | None:
    """Say which header a failure of Spark is about, with both; None if it is about something else."""
    text = _with_causes(error)
    if found := _NAMES.search(text):
        return _told(found[3], found[1], found[2])
    if found := _NUMBER.search(text):
        path = unquote(urlparse(found[1]).path)
        above = [one for one in _declared if path.startswith(one.rstrip("/") + "/")]
        here = ", ".join(_declared[max(above, key=len)]) if above else "other columns"
        return _told(found[1], _first_line(path), here)
    return None


def _with_causes(error: BaseException) -> str:
    """What an error says, and what the exceptions of Java behind it say."""
    texts = [str(error)]
    cause = getattr(error, "_cause", None)
    while cause is not None and len(texts) < MOST_CAUSES:
        texts.append(str(getattr(cause, "_desc", None) or cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def _told(url: str, there: str, here: str) -> str:
    path = unquote(urlparse(url).path)
    return f"the header of {path} differs from the declared columns: there {there}; here {here}"


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.readline(LONGEST_HEADER).decode("utf-8-sig", "replace").strip()
    except OSError:
        return "another number of columns"

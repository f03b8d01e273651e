"""What is said of a command line that cannot be understood: options before the command, and values of a wrong type."""

from __future__ import annotations

import re
import shlex
from typing import Any

from millstream.cli.commands import COMMANDS

_OWN_OPTIONS = ("--help", "-h", "--version", "-V", "--install-completion", "--show-completion")
_OF_EVERY_COMMAND = ("-b", "--bootstrap")
_VERB = re.compile(r"[a-z][a-z-]*")
_PREFIX = "Value error, "
_BOUNDS = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}


def misplaced_option(words: list[str]) -> str | None:
    """Return what to write instead where an option stands before the command, or before its verb; None where none does."""
    names = {command.name: command for command in COMMANDS}
    if words and words[0] in names:
        verbs = [word.strip() for word in names[words[0]].verbs.split("|")]
        if not all(map(_VERB.fullmatch, verbs)):
            return None
        return _moved_behind(words[:1], words[1:], verbs)
    return _moved_behind([], words, [*names])


def _moved_behind(before: list[str], words: list[str], commands: list[str]) -> str | None:
    if not words or not words[0].startswith("-") or words[0].partition("=")[0] in _OWN_OPTIONS:
        return None
    at = next((at for at, word in enumerate(words) if word in commands), None)
    if at is None:
        if before or words[0].partition("=")[0] not in _OF_EVERY_COMMAND:
            return None
        return f"{words[0].partition('=')[0]} stands before a command; options come behind it: `millstream topics list -b HOST:PORT`"
    command = words[at]
    line = shlex.join(["millstream", *before, *words[at:], *words[:at]])
    return f"{words[0].partition('=')[0]} stands before `{command}`; options come behind it: `{line}`"


def plain_words(error: Any) -> str | None:
    """Return what is wrong with the value of an option, with the value; None where the error says it already.

    Newer versions of typer check values with pydantic, whose sentences speak of inputs and leave the value out.
    """
    found = getattr(error.__cause__, "errors", None)
    if not callable(found) or not (failures := found()):
        return None
    first = failures[0]
    kind, given, limits = first["type"], first.get("input"), first.get("ctx", {})
    if kind.startswith("int_"):
        return f"{given!r} is not a whole number"
    if kind.startswith(("float_", "decimal_")):
        return f"{given!r} is not a number"
    for bound, words in _BOUNDS.items():
        if bound in limits:
            return f"{given} is out of range: {words} {limits[bound]}"
    return str(first["msg"]).removeprefix(_PREFIX)

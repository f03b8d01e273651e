"""Messages for usage errors: options before the command, and values of the wrong type."""

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
    """Return how to fix an option before the command or its verb, or None if there is none."""
    names = {command.name: command for command in COMMANDS}
    if words and words[0] in names:
        verbs = [word.strip() for word in names[words[0]].verbs.split("|")]
        if not all(map(_VERB.fullmatch, verbs)):
            return None
        return _moved_after(words[:1], words[1:], verbs)
    return _moved_after([], words, [*names])


def _moved_after(before: list[str], words: list[str], commands: list[str]) -> str | None:
    if not words or not words[0].startswith("-") or words[0].partition("=")[0] in _OWN_OPTIONS:
        return None
    at = next((at for at, word in enumerate(words) if word in commands), None)
    if at is None:
        if before or words[0].partition("=")[0] not in _OF_EVERY_COMMAND:
            return None
        option = words[0].partition("=")[0]
        return f"{option} must come after the command: `millstream topics list -b HOST:PORT`"
    command = words[at]
    line = shlex.join(["millstream", *before, *words[at:], *words[:at]])
    return f"{words[0].partition('=')[0]} must come after `{command}`: `{line}`"


def value_error(error: Any) -> str | None:
    """Return the problem with an option's value, including the value, or None to keep the message.

    Newer versions of typer check values with pydantic, whose messages leave the value out.
    """
    list_failures = getattr(error.__cause__, "errors", None)
    if not callable(list_failures) or not (failures := list_failures()):
        return None
    first = failures[0]
    kind, value, limits = first["type"], first.get("input"), first.get("ctx", {})
    if kind.startswith("int_"):
        return f"{value!r} is not a whole number"
    if kind.startswith(("float_", "decimal_")):
        return f"{value!r} is not a number"
    for bound, words in _BOUNDS.items():
        if bound in limits:
            return f"{value} is out of range: must be {words} {limits[bound]}"
    return str(first["msg"]).removeprefix(_PREFIX)

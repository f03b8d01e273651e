"""Messages for usage errors: options before the command."""

from __future__ import annotations

import re
import shlex

from millstream.cli.commands import COMMANDS

_OWN_OPTIONS = ("--help", "-h", "--version", "-V", "--install-completion", "--show-completion")
_OF_EVERY_COMMAND = ("-b", "--bootstrap")
_VERB = re.compile(r"[a-z][a-z-]*")


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

"""Shell completion: the scripts for bash, zsh and fish, and the words that they offer.

A script runs ``millstream`` with ``_MILLSTREAM_COMPLETE=complete_SHELL`` and the words of the
command line in other variables. ``source_SHELL`` prints the script.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, ShellComplete

PROGRAM = "millstream"
VARIABLE = "_MILLSTREAM_COMPLETE"
# The name comes from typer, which the first versions used: scripts that they installed still work.
WORDS = "_TYPER_COMPLETE_ARGS"
MISUSE = 2

_BASH = """\
_millstream_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
        _MILLSTREAM_COMPLETE=complete_bash $1 ) )
    return 0
}

complete -o default -F _millstream_completion millstream
"""
_ZSH = """\
#compdef millstream

_millstream_completion() {
    local -a items
    items=("${(@f)$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" \\
        _MILLSTREAM_COMPLETE=complete_zsh millstream)}")
    if [[ -n "$items" ]]; then
        _describe 'millstream' items
    else
        _files
    fi
}

compdef _millstream_completion millstream
"""
_FISH = """\
complete --command millstream --arguments \\
    "(env _TYPER_COMPLETE_ARGS=(commandline -cp) _MILLSTREAM_COMPLETE=complete_fish millstream)"
"""


def _plain(item: CompletionItem) -> str:
    return str(item.value)


def _zsh_row(item: CompletionItem) -> str:
    """Return ``value:help``, as zsh's _describe reads it."""
    value = str(item.value).replace(":", "\\:")
    return f"{value}:{_one_line(item.help)}" if item.help else value


def _fish_row(item: CompletionItem) -> str:
    return f"{item.value}\t{_one_line(item.help)}" if item.help else str(item.value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Shell(NamedTuple):
    """A shell: its script, the form of an offered word, the script's file and the startup file."""

    script: str
    row: Callable[[CompletionItem], str]
    file: str
    startup_file: str = ""
    startup_line: str = ""


SHELLS: Mapping[str, Shell] = {
    "bash": Shell(
        _BASH,
        _plain,
        ".bash_completions/millstream.sh",
        ".bashrc",
        "source ~/.bash_completions/millstream.sh",
    ),
    "zsh": Shell(
        _ZSH,
        _zsh_row,
        ".zfunc/_millstream",
        ".zshrc",
        "fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    ),
    "fish": Shell(_FISH, _fish_row, ".config/fish/completions/millstream.fish"),
}


def answer(command: click.Command, instruction: str) -> int:
    """Do what ``_MILLSTREAM_COMPLETE`` says: print the script of a shell, or the words to offer."""
    action, _, name = instruction.partition("_")
    shell = SHELLS.get(name)
    if shell is None or action not in ("source", "complete"):
        print(
            f"error: {VARIABLE}={instruction} is not source_SHELL or complete_SHELL",
            file=sys.stderr,
        )
        return MISUSE
    if action == "source":
        print(shell.script)
        return 0
    words, incomplete = _bash_words() if name == "bash" else _words()
    completion = ShellComplete(command, {}, PROGRAM, VARIABLE)
    for item in completion.get_completions(words, incomplete):
        print(shell.row(item))
    return 0


def _bash_words() -> tuple[list[str], str]:
    """Return the words before the cursor, without the program, and the word at the cursor."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = int(os.environ.get("COMP_CWORD", "0"))
    return words[1:at], words[at] if at < len(words) else ""


def _words() -> tuple[list[str], str]:
    line = os.environ.get(WORDS, "")
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    if line.endswith(" ") or len(words) == 1:
        return words[1:], ""
    return words[1:-1], words[-1] if words else ""


def run_option(option: str, name: str | None) -> int:
    """Show (``--show-completion``) or install the script of a shell, by default the user's own."""
    name = name or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        print(
            f"error: no completion for {name!r}; choose one of {', '.join(SHELLS)}", file=sys.stderr
        )
        return MISUSE
    if option == "--show-completion":
        print(SHELLS[name].script)
        return 0
    path = install(SHELLS[name], Path.home())
    print(f"{name} completion installed in {path}; it takes effect in the next terminal")
    return 0


def install(shell: Shell, home: Path) -> Path:
    """Write the script, and a line into the startup file of the shell if it needs one."""
    path = home / shell.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shell.script)
    if shell.startup_file:
        startup = home / shell.startup_file
        text = startup.read_text() if startup.exists() else ""
        if shell.startup_line not in text:
            startup.write_text(f"{text.rstrip()}\n{shell.startup_line}\n".lstrip())
    return path

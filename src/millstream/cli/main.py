"""``millstream``: the entry point. Routes what must be fast before anything heavy is imported.

``serve`` goes straight to the broker (typer would add half again to its start), help and version print text; every
other command goes through ``app``, which imports typer and the one noun that was named.
"""

from __future__ import annotations

import os
import sys

COMPLETION_VARIABLE = "_MILLSTREAM_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
MISUSE, INTERRUPTED = 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code: 0, 1 for a failure, 2 for misuse, 130 for Ctrl-C."""
    try:
        return _route(sys.argv[1:], own_process=True) if argv is None else _route(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _route(words: list[str], *, own_process: bool = False) -> int:
    if COMPLETION_VARIABLE not in os.environ:
        if words[:1] == ["serve"]:
            return _serve(words[1:])
        if not words or words in (["--help"], ["-h"], ["help"]):
            return _print_help()
        if words in (["version"], ["--version"], ["-V"]):
            return _print_version()
        if len(words) == 2 and words[0] in ("--show-completion", "--install-completion"):
            return _complete(*words)
    if own_process:
        from millstream.cli.pipeline import driver_restart

        driver_restart.allow()
    from millstream.cli.app import run

    return run(words)


def _serve(words: list[str]) -> int:
    from millstream.broker.main import serve_command

    return serve_command(words)


def _complete(option: str, shell: str) -> int:
    """For the shell that is named; typer takes the option without, for the shell it finds itself in."""
    if shell not in SHELLS:
        print(f"error: there is no completion for {shell!r}; there are {', '.join(SHELLS)}", file=sys.stderr)
        return MISUSE
    from typer.completion import get_completion_script, install  # type: ignore[attr-defined]

    if option == "--show-completion":
        print(get_completion_script(prog_name="millstream", complete_var=COMPLETION_VARIABLE, shell=shell))
    else:
        name, path = install(shell=shell, prog_name="millstream", complete_var=COMPLETION_VARIABLE)
        print(f"{name} completion installed in {path}; it takes effect in the next terminal")
    return 0


def _print_help() -> int:
    from millstream.cli.commands import help_text

    print(help_text(), end="")
    return 0


def _print_version() -> int:
    from millstream import __version__

    print(f"millstream {__version__}")
    return 0

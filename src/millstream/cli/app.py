"""The application: imports only the noun that was named and turns errors into exit codes.

An error is printed as one line on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

from millstream.cli.commands import COMMANDS
from millstream.cli.support import completion, declare
from millstream.cli.support.extras import missing_extra
from millstream.cli.support.misuse import misplaced_option
from millstream.client.errors import ClientError

FAILED = 1
MISUSE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141  # the exit code that a shell shows for a tool killed by SIGPIPE


class Nouns(declare.Group):
    """The top-level group. The module of a noun has an ``app``, loaded when the noun is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        row = next((row for row in COMMANDS if row.name == cmd_name), None)
        if row is None:
            return None
        command = import_module(row.module).app.build()
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command. All commands run inside this call, so errors are reported only here."""
        interrupts = _Interrupts()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except declare.Exit:
            raise
        except ClientError as error:
            missing = missing_extra(error.__cause__)
            # A file of the user, such as a pipeline, may import the missing package.
            if missing is not None and not error.hint:
                error.hint = missing.hint
            print(f"error: {error}", file=sys.stderr)
            raise declare.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise declare.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _silence_stdout()
            raise declare.Exit(BROKEN_PIPE) from None
        except ImportError as error:
            if (missing := missing_extra(error)) is None:
                raise
            print(f"error: {missing}", file=sys.stderr)
            raise declare.Exit(FAILED) from None
        except Exception:
            if interrupts.seen:
                raise declare.Exit(INTERRUPTED) from None
            raise


class _Interrupts:
    """Remembers whether Ctrl-C was pressed.

    Inside librdkafka's binding a KeyboardInterrupt may surface as another exception.
    """

    def __init__(self) -> None:
        self.seen = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at interpreter exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = declare.Application(cls=Nouns, name=completion.PROGRAM)


@app.callback()
def millstream() -> None:
    """A Kafka for people who live in Python."""


def run(words: list[str]) -> int:
    """Run one command line and return its exit code."""
    if (misplaced := misplaced_option(words)) is not None:
        print(f"error: {misplaced}", file=sys.stderr)
        return MISUSE
    command = app.build()
    if (instruction := os.environ.get(completion.VARIABLE)) is not None:
        return completion.answer(command, instruction)
    try:
        command(args=words, prog_name=completion.PROGRAM)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0

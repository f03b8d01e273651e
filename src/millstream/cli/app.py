"""The typer application: finds a noun by its name and imports only that one; turns errors into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from millstream.cli.commands import COMMANDS
from millstream.cli.support.extras import missing_extra
from millstream.cli.support.misuse import misplaced_option, plain_words
from millstream.client.errors import ClientError

FAILED = 1
MISUSE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell shows for a tool that SIGPIPE ended


class Nouns(TyperGroup):
    """The top-level group. A noun's module has an ``app``, which is loaded when the noun is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [one.name for one in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        row = next((row for row in COMMANDS if row.name == cmd_name), None)
        if row is None:
            return None
        command = typer.main.get_command(import_module(row.module).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does, but suggesting names from the table, not from commands loaded before."""
        self.commands = dict.fromkeys(self.list_commands(ctx))  # type: ignore[assignment]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Every command runs inside this call: the one place where errors become words."""
        interrupts = _Interrupts()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except typer.Exit:
            raise
        except typer.BadParameter as error:
            error.message = plain_words(error) or error.message
            raise
        except ClientError as error:
            missing = missing_extra(error.__cause__)
            if missing is not None and not error.hint:  # a file of the user imports it
                error.hint = missing.hint
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _silence_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except ImportError as error:
            if (missing := missing_extra(error)) is None:
                raise
            print(f"error: {missing}", file=sys.stderr)
            raise typer.Exit(FAILED) from None
        except Exception:
            if interrupts.seen:
                raise typer.Exit(INTERRUPTED) from None
            raise


class _Interrupts:
    """Whether Ctrl-C was pressed. Inside librdkafka's binding the KeyboardInterrupt may come out as another exception."""

    def __init__(self) -> None:
        self.seen = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


def _silence_stdout() -> None:
    """The reader is gone: what is still buffered must not be reported when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(cls=Nouns, name="millstream", rich_markup_mode=None, add_completion=True)


@app.callback()
def millstream() -> None:
    """A Kafka for people who live in Python."""


def run(words: list[str]) -> int:
    """Run one command line; the exit code."""
    if (misplaced := misplaced_option(words)) is not None:
        print(f"error: {misplaced}", file=sys.stderr)
        return MISUSE
    try:
        typer.main.get_command(app)(args=words, prog_name="millstream")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0

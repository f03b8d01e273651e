"""``millstream sql``: statements over topics, one command or a prompt, and ``sql run``, which runs stored flows."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from millstream.cli.pipeline.run import INTERRUPTED, run_and_show, spark_session
from millstream.cli.support.extras import need_spark
from millstream.cli.support.options import (
    Bootstrap,
    Checkpoint,
    Conf,
    Format,
    Master,
    Once,
    OutputFormat,
    ResetProgress,
    StopTimeout,
    noun,
    pairs,
)
from millstream.cli.support.output import note
from millstream.client.connection import DEFAULT_BOOTSTRAP
from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from millstream.pipelines.runner import Run
    from millstream.sql.catalog import Source
    from millstream.sql.engine import Engine
    from millstream.sql.guess import Guess

CATALOG = "__millstream_sql_catalog"
DEFAULT_VERB = "query"
LOOK_EVERY_S = 1.0
MOST_ROWS = 1000


class Statements(TyperGroup):
    """Whatever is no verb is a statement."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [DEFAULT_VERB, *args]
        return super().parse_args(ctx, args)


app = noun("SQL over topics, on Spark.", cls=Statements, no_args_is_help=False)

Catalog = Annotated[
    str, typer.Option("--catalog", metavar="TOPIC", help="The topic that keeps what is declared.")
]


@app.command(DEFAULT_VERB)
def query(
    statement: Annotated[
        str | None, typer.Argument(metavar="[STATEMENT]", help="What to do; none: a prompt.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Statements from a file; - for stdin.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take guessed columns as they are.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many rows in a table.")
    ] = MOST_ROWS,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    conf: Conf = None,
    checkpoint: Checkpoint = None,
    catalog: Catalog = CATALOG,
) -> None:
    """Carry out statements; without one, and without --file, ask for them. (`query` need not be said.)"""
    need_spark("statements")
    from millstream.cli.sql.prompt import Prompt
    from millstream.cli.sql.show import Shown
    from millstream.sql.catalog import CatalogTopic
    from millstream.sql.engine import Engine

    if statement is not None and file is not None:
        raise typer.BadParameter("give a statement or --file, not both")
    asks = statement is None and file is None and sys.stdin.isatty()
    with ExitStack() as stack:
        spark = _Lazy(stack, master, pairs(conf, "--conf"))
        engine = Engine(
            CatalogTopic(bootstrap, catalog),
            spark,
            checkpoint=checkpoint,
            confirm=_confirm(yes=yes, asks=asks),
        )
        shown = Shown(engine, format, limit)
        if asks:
            Prompt(engine, shown, f"{bootstrap}, {master}").run()
        else:
            name, text = _script(statement, file)
            run_script(engine, shown, text, name)


@app.command()
def run(
    flow: Annotated[
        list[str] | None, typer.Argument(help="Only these flows; all, and those to come.")
    ] = None,
    once: Once = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    conf: Conf = None,
    checkpoint: Checkpoint = None,
    catalog: Catalog = CATALOG,
    reset_progress: ResetProgress = False,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Run the flows that are stored, until Ctrl-C; flows that are made or dropped meanwhile are started and stopped."""
    need_spark("flows")
    from millstream.pipelines.run.layout import Layout
    from millstream.pipelines.runner import RunOptions, taken_lock
    from millstream.sql.catalog import CatalogFollower, CatalogTopic
    from millstream.sql.declared import pipeline_name, pipeline_of

    topic, name = CatalogTopic(bootstrap, catalog), pipeline_name(catalog)
    found = topic.read()
    only = [found.flow(one).id for one in flow or ()]
    if once and not found.flows:
        raise ClientError("there are no flows", hint="store one: INSERT INTO name SELECT ...")
    given = pairs(conf, "--conf")
    options = RunOptions(once, only, checkpoint, reset_progress, stop_timeout, independent=True, conf=given)
    taken_lock(Layout(name, checkpoint), name).release()
    if not found.flows:
        note("there are no flows yet: they begin when they are stored")
    follower = CatalogFollower(topic)
    looked_s = time.monotonic()

    def follow(run: Run) -> None:
        nonlocal looked_s
        if once or time.monotonic() - looked_s < LOOK_EVERY_S:
            return
        looked_s = time.monotonic()
        if follower.changed():
            try:
                run.change(pipeline_of(follower.catalog, bootstrap, name=name))
            except ClientError as error:
                note(f"what was declared cannot be run, so everything goes on as before: {error}")

    try:
        with spark_session(name, master, given) as spark:
            pipeline = pipeline_of(found, bootstrap, name=name)
            run_and_show(pipeline, spark, options, master, format, follow)
    finally:
        follower.close()


class _Lazy:
    """The Spark session, started when somebody needs it."""

    def __init__(self, stack: ExitStack, master: str, conf: dict[str, str]) -> None:
        self._stack, self._master, self._conf = stack, master, conf
        self._spark: Any = None

    def __call__(self) -> Any:
        if self._spark is None:
            if sys.stderr.isatty():
                note(f"starting Spark ({self._master})")
            before = signal.getsignal(signal.SIGINT)
            self._spark = self._stack.enter_context(spark_session("sql", self._master, self._conf))
            signal.signal(signal.SIGINT, before)  # PySpark has put its own in its place
        return self._spark


def _confirm(*, yes: bool, asks: bool) -> Any:
    def confirm(source: Source, found: Guess) -> None:
        from millstream.sql.declaring import refuse_all
        from millstream.sql.errors import SqlError

        if not yes and not asks:
            refuse_all(source, found)
        odd = f", of which {found.odd} do not fit" if found.odd else ""
        note(f"guessed from {found.values} values{odd}:\n\n{source.statement()}\n")
        if not yes and not _agrees("create it?"):
            raise SqlError("nothing is created", hint="run the statement above, changed where it is wrong")

    return confirm


def _agrees(question: str) -> bool:
    """Ctrl-C is a no."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (KeyboardInterrupt, EOFError):
        print()
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def _script(statement: str | None, file: str | None) -> tuple[str | None, str]:
    """The name of the script, where it has one, and its text."""
    if statement is not None:
        return None, statement
    if file is None or file == "-":
        return None, sys.stdin.read()
    try:
        return file, Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ClientError(f"cannot read {file}: {error.strerror}") from None


def run_script(engine: Engine, shown: Any, text: str, name: str | None) -> None:
    """Statements one after the other, up to the first that fails, or that Ctrl-C ends."""
    from millstream.cli.sql.show import Interrupted
    from millstream.sql.tokens import statements_of

    pieces = statements_of(text)
    if not pieces:
        raise ClientError("there is no statement", hint='for example "SHOW TABLES"')
    for piece in pieces:
        where = f"{name}:{piece.line}: " if name else ""
        try:
            done = shown.statement(piece.text, where)
        except Interrupted:
            raise typer.Exit(INTERRUPTED) from None
        if not done:
            raise typer.Exit(1)

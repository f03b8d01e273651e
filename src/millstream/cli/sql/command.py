"""``millstream sql``: run statements over topics, or a prompt; ``sql run`` runs stored flows."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.pipeline.run import INTERRUPTED, run_and_show, spark_session
from millstream.cli.support import declare
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
POLL_S = 1.0
MAX_ROWS = 1000


class Statements(declare.Group):
    """Takes a first argument that is no verb as a statement."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [DEFAULT_VERB, *args]
        return super().parse_args(ctx, args)


app = noun("SQL over topics, on Spark.", cls=Statements, no_args_is_help=False)

Catalog = Annotated[
    str, declare.Option("--catalog", metavar="TOPIC", help="Topic that stores the declarations.")
]


@app.command(DEFAULT_VERB)
def query(
    statement: Annotated[
        str | None,
        declare.Argument(metavar="[STATEMENT]", help="Statement to run. [default: open a prompt]"),
    ] = None,
    file: Annotated[
        str | None,
        declare.Option(
            "--file", "-f", metavar="FILE", help="Read statements from a file; - is stdin."
        ),
    ] = None,
    yes: Annotated[bool, declare.Option("--yes", "-y", help="Accept guessed columns.")] = False,
    limit: Annotated[
        int,
        declare.Option("--limit", "-n", min=1, help="Maximum number of rows to show in a table."),
    ] = MAX_ROWS,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    conf: Conf = None,
    checkpoint: Checkpoint = None,
    catalog: Catalog = CATALOG,
) -> None:
    """Run statements, or open a prompt. The word `query` is optional."""
    need_spark("statements")
    from millstream.cli.sql.prompt import Prompt
    from millstream.cli.sql.show import StatementRunner
    from millstream.sql.catalog import CatalogTopic
    from millstream.sql.engine import Engine

    if statement is not None and file is not None:
        raise declare.BadParameter("give a statement or --file, not both")
    interactive = statement is None and file is None and sys.stdin.isatty()
    with ExitStack() as stack:
        spark = _LazySession(stack, master, pairs(conf, "--conf"))
        engine = Engine(
            CatalogTopic(bootstrap, catalog),
            spark,
            checkpoint=checkpoint,
            confirm=_confirm(yes=yes, interactive=interactive),
        )
        runner = StatementRunner(engine, format, limit)
        if interactive:
            Prompt(engine, runner, f"{bootstrap}, {master}").run()
        else:
            name, text = _script(statement, file)
            run_script(engine, runner, text, name)


@app.command()
def run(
    flow: Annotated[
        list[str] | None,
        declare.Argument(help="Flows to run. [default: all, including later ones]"),
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
    """Run the stored flows until Ctrl-C. Flows that are created or dropped start and stop."""
    need_spark("flows")
    from millstream.pipelines.run.layout import Layout
    from millstream.pipelines.run.locks import lock_pipeline
    from millstream.pipelines.runner import RunOptions
    from millstream.sql.catalog import CatalogFollower, CatalogTopic
    from millstream.sql.declared import pipeline_name, pipeline_of

    topic, name = CatalogTopic(bootstrap, catalog), pipeline_name(catalog)
    stored = topic.read()
    only = [stored.flow(flow_name).id for flow_name in flow or ()]
    if once and not stored.flows:
        raise ClientError("no flows", hint="create one: INSERT INTO name SELECT ...")
    spark_conf = pairs(conf, "--conf")
    options = RunOptions(
        once, only, checkpoint, reset_progress, stop_timeout, independent=True, conf=spark_conf
    )
    lock_pipeline(Layout(name, checkpoint), name).release()
    if not stored.flows:
        note("no flows yet: a flow starts when it is created")
    follower = CatalogFollower(topic)
    polled_s = time.monotonic()

    def follow(run: Run) -> None:
        nonlocal polled_s
        if once or time.monotonic() - polled_s < POLL_S:
            return
        polled_s = time.monotonic()
        if follower.changed():
            try:
                run.change(pipeline_of(follower.catalog, bootstrap, name=name))
            except ClientError as error:
                note(
                    f"the new declarations cannot be run, and the running flows stay unchanged: {error}"
                )

    try:
        with spark_session(name, master, spark_conf) as spark:
            pipeline = pipeline_of(stored, bootstrap, name=name)
            run_and_show(pipeline, spark, options, master, format, follow)
    finally:
        follower.close()


class _LazySession:
    """The Spark session, started on first use."""

    def __init__(self, stack: ExitStack, master: str, conf: dict[str, str]) -> None:
        self._stack, self._master, self._conf = stack, master, conf
        self._spark: Any = None

    def __call__(self) -> Any:
        if self._spark is None:
            if sys.stderr.isatty():
                note(f"starting Spark ({self._master})")
            before = signal.getsignal(signal.SIGINT)
            self._spark = self._stack.enter_context(spark_session("sql", self._master, self._conf))
            signal.signal(signal.SIGINT, before)  # PySpark has replaced it
        return self._spark


def _confirm(*, yes: bool, interactive: bool) -> Any:
    def confirm(source: Source, guess: Guess) -> None:
        from millstream.sql.declaring import reject_guess
        from millstream.sql.errors import SqlError

        if not yes and not interactive:
            reject_guess(source, guess)
        odd = f", {guess.odd} of which do not match" if guess.odd else ""
        note(f"guessed from {guess.values} values{odd}:\n\n{source.statement()}\n")
        if not yes and not _agrees("create it?"):
            raise SqlError("nothing created", hint="correct the statement above and run it")

    return confirm


def _agrees(question: str) -> bool:
    """Ask a question. Ctrl-C means no."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (KeyboardInterrupt, EOFError):
        print()
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def _script(statement: str | None, file: str | None) -> tuple[str | None, str]:
    """Return the name of the script, if any, and its text."""
    if statement is not None:
        return None, statement
    if file is None or file == "-":
        return None, sys.stdin.read()
    try:
        return file, Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ClientError(f"cannot read {file}: {error.strerror}") from None


def run_script(engine: Engine, runner: Any, text: str, name: str | None) -> None:
    """Run statements in order, until one fails or Ctrl-C."""
    from millstream.cli.sql.show import Interrupted
    from millstream.sql.tokens import statements_of

    pieces = statements_of(text)
    if not pieces:
        raise ClientError("no statement given", hint='try "SHOW TABLES"')
    for piece in pieces:
        where = f"{name}:{piece.line}: " if name else ""
        try:
            done = runner.statement(piece.text, where)
        except Interrupted:
            raise declare.Exit(INTERRUPTED) from None
        if not done:
            raise declare.Exit(1)

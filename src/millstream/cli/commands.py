"""The table of commands. Help, completion and the loading of a noun all read it.

It imports nothing, so that ``millstream --help`` answers at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A noun, or a verb that needs none. The module of the same name in this package holds it.

    A noun of several files is a folder, and the folder's module ``command`` holds it.
    """

    name: str
    summary: str
    verbs: str = ""
    folder: bool = False

    @property
    def module(self) -> str:
        stem = self.name.replace("-", "_")
        return f"millstream.cli.{stem}.command" if self.folder else f"millstream.cli.{stem}"


COMMANDS = (
    Command("serve", "run a broker in the foreground", "[--config FILE] [--set NAME=VALUE ...]"),
    Command(
        "up",
        "start a cluster: ZooKeeper and several brokers",
        "[--brokers N] [--zookeepers N] [--add] [--set NAME=VALUE ...]",
        folder=True,
    ),
    Command("zookeeper", "run a ZooKeeper server in the foreground", "[--port PORT] [--data DIR]"),
    Command(
        "migrate",
        "make a single broker the first of a cluster",
        "--to HOST:PORT[/CHROOT] [--data DIR ...] [--undo]",
    ),
    Command("demo", "start a broker, use it, kill it, and check that no data is lost", folder=True),
    Command("topics", "topics and their partitions", "create | list | describe | alter | delete"),
    Command("configs", "settings of topics and brokers", "list | describe | alter"),
    Command(
        "groups",
        "consumer groups, their lag and offsets",
        "list | describe | reset-offsets | delete | delete-offsets",
    ),
    Command(
        "transactions", "transactions, including hanging ones", "list | describe | hanging | abort"
    ),
    Command(
        "reassign",
        "move partitions between brokers",
        "plan | execute | status | cancel | unthrottle",
    ),
    Command("elect-leaders", "give leadership back to the preferred replicas"),
    Command("dlq", "dead letters: records that pipelines could not read", "list | show | redrive"),
    Command("produce", "send records from stdin or a file"),
    Command("consume", "print records"),
    Command("pipeline", "pipelines on Spark, exactly once", "run | check | status", folder=True),
    Command(
        "connect",
        "copy between topics, files, databases, Parquet and Delta",
        "FROM TO [--schema DDL] [--key COLUMN] [--once]",
    ),
    Command("spark", "a Spark cluster on this machine, for --master", "up | prepare", folder=True),
    Command(
        "sql",
        "SQL over topics: a statement, or a prompt",
        "[STATEMENT] [--file FILE] | run",
        folder=True,
    ),
    Command(
        "mirror",
        "copy topics to another cluster, one way or both",
        "--from [NAME=]HOST:PORT --to [NAME=]HOST:PORT --topics NAME|REGEX,...",
    ),
    Command(
        "perf", "measure a cluster: rates and latencies", "produce | consume | e2e", folder=True
    ),
    Command("plan", "estimate the disk and brokers that a load needs", folder=True),
    Command("doctor", "check a running cluster and suggest fixes", folder=True),
    Command("log", "inspect the files of a broker", "dump | verify"),
    Command("version", "print the version"),
)

_HEAD = """\
Usage: millstream COMMAND [VERB] [OPTIONS]

A Kafka for people who live in Python.
"""

_TAIL = """\
Options:
  --help                        show this text; every command and verb has its own help
  --version                     print the version
  --install-completion [SHELL]  install completion of commands and topic names
  --show-completion [SHELL]     print the completion script

Commands connect to localhost:9092 unless --bootstrap HOST:PORT (-b) or MILLSTREAM_BOOTSTRAP is set.

Try:
  millstream serve --set log.dirs=./data
  millstream topics create orders --partitions 3
  echo 'k1:hello' | millstream produce orders --key-separator :
  millstream consume orders --exit -f '%t[%p] %o %k %s\\n'
"""


def help_text() -> str:
    """Return the text of ``millstream --help``."""
    rows = [
        f"  {command.name:<14} {command.summary}"
        + (f"\n  {'':<14}   {command.verbs}" if command.verbs else "")
        for command in COMMANDS
    ]
    return "\n".join([_HEAD, "Commands:", *rows, "", _TAIL])

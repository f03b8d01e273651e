"""The commands there are, as rows: the help, the completion and the loading of a noun all come from here.

Nothing is imported for it, so that ``millstream --help`` answers at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A noun (or a verb that needs none): the module of its name in this package holds it.

    A noun of several files is a folder, whose module ``command`` holds it.
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
    Command("serve", "run one broker in the foreground", "[--config FILE] [--set NAME=VALUE ...]"),
    Command(
        "up",
        "start a cluster: ZooKeeper and several brokers",
        "[--brokers N] [--zookeepers N] [--add] [--set NAME=VALUE ...]",
        folder=True,
    ),
    Command("zookeeper", "run one ZooKeeper server in the foreground", "[--port PORT] [--data DIR]"),
    Command(
        "migrate",
        "make a single broker the first of a cluster",
        "--to HOST:PORT[/CHROOT] [--data DIR ...] [--undo]",
    ),
    Command("demo", "start a broker, use it, kill it, and check that nothing is lost", folder=True),
    Command("topics", "topics and their partitions", "create | list | describe | alter | delete"),
    Command("configs", "settings of topics and brokers", "list | describe | alter"),
    Command(
        "groups",
        "consumer groups, their lag and offsets",
        "list | describe | reset-offsets | delete | delete-offsets",
    ),
    Command("transactions", "transactions, and those that hang", "list | describe | hanging | abort"),
    Command("reassign", "move partitions between brokers", "plan | execute | status | cancel | unthrottle"),
    Command("elect-leaders", "give leadership back to the preferred replicas"),
    Command("dlq", "dead letters: what pipelines could not read", "list | show | redrive"),
    Command("produce", "send records from stdin or a file"),
    Command("consume", "print records"),
    Command("pipeline", "pipelines on Spark, exactly once", "run | check | status", folder=True),
    Command(
        "connect",
        "files, databases, Parquet and Delta from and to topics",
        "FROM TO [--schema DDL] [--key COLUMN] [--once]",
    ),
    Command("spark", "a Spark cluster on this machine, for --master", "up | prepare", folder=True),
    Command(
        "sql", "SQL over topics: a statement, or a prompt", "[STATEMENT] [--file FILE] | run", folder=True
    ),
    Command(
        "mirror",
        "topics of one cluster as topics of another, one way or both",
        "--from [NAME=]HOST:PORT --to [NAME=]HOST:PORT --topics NAME|REGEX,...",
    ),
    Command("perf", "measure a cluster: rates and latencies", "produce | consume | e2e", folder=True),
    Command("plan", "how much disk and how many brokers a load needs", folder=True),
    Command("doctor", "look at a running cluster and say what to do", folder=True),
    Command("log", "look into the files of a broker", "dump | verify"),
    Command("version", "print the version"),
)

_HEAD = """\
Usage: millstream COMMAND [VERB] [OPTIONS]

A Kafka for people who live in Python.
"""

_TAIL = """\
Options:
  --help                        this text; every command and verb has its own
  --version                     print the version
  --install-completion [SHELL]  complete commands and topic names in your shell, or another
  --show-completion [SHELL]     print the completion script

The cluster is localhost:9092 unless --bootstrap HOST:PORT (-b) or MILLSTREAM_BOOTSTRAP says otherwise.

Try:
  millstream serve --set log.dirs=./data
  millstream topics create orders --partitions 3
  echo 'k1:hello' | millstream produce orders --key-separator :
  millstream consume orders --exit -f '%t[%p] %o %k %s\\n'
"""


def help_text() -> str:
    """What ``millstream --help`` prints."""
    rows = [
        f"  {one.name:<12} {one.summary}" + (f"\n  {'':<12}   {one.verbs}" if one.verbs else "")
        for one in COMMANDS
    ]
    return "\n".join([_HEAD, "Commands:", *rows, "", _TAIL])

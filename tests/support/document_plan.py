"""How each document is run: which of its parts stand alone, what is there before they begin, and
what cannot run, with the reason.

A document that is not named here fails the tests, unless it has no programs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from support import document_worlds as worlds
from support.doc_session import Session, run_block
from support.documents import Block, Step, blocks, documents

EVERY = "every section"


@dataclass(frozen=True)
class Plan:
    """What is to be known of a document before it is run."""

    apart: frozenset[str] | str = (
        frozenset()
    )  # sections that begin anew, with a broker of their own
    spark: frozenset[str] | str = (
        frozenset()
    )  # sections that need Spark: they are run in tests/stories/documents
    before: Mapping[str, Callable[[Session], None]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    covered_by: str = ""  # another test that runs it


# Spark's own Python processes have the environment that the JVM of all tests was started with: they
# are told the address.
WITH_ADDRESS = {
    '.format("millstream")': '.format("millstream").option("kafka.bootstrap.servers", "localhost:9092")'
}

PLANS = {
    "README.md": Plan(
        spark=frozenset({"Pipelines"}), apart=frozenset({"Pipelines"}), before=worlds.README
    ),
    "docs/tutorial.md": Plan(
        apart=frozenset({"A pipeline", "A cluster"}),
        spark=frozenset({"A pipeline"}),
        before=worlds.TUTORIAL,
    ),
    "docs/internals/log.md": Plan(),
    "docs/clients.md": Plan(),
    "docs/testing.md": Plan(),
    "docs/testing-elsewhere.md": Plan(covered_by="tests/interop/test_testing_elsewhere.py"),
    "docs/cli.md": Plan(
        apart=frozenset(worlds.COMMAND_LINE) | {"topics"}, before=worlds.COMMAND_LINE
    ),
    "docs/cluster.md": Plan(apart=EVERY, before=worlds.CLUSTER),
    "docs/spark.md": Plan(spark=EVERY, before=worlds.SPARK, replaced=WITH_ADDRESS),
    "docs/spark-sink.md": Plan(
        spark=EVERY,
        before=worlds.SPARK_SINK,
        replaced=WITH_ADDRESS
        | {
            "/data/checkpoints": "DIRECTORY/checkpoints",
            "query.awaitTermination()": "query.processAllAvailable()\nquery.stop()",
        },
    ),
    "docs/dead-letters.md": Plan(
        spark=frozenset({"Formats"}), apart=EVERY, before=worlds.DEAD_LETTERS, replaced=WITH_ADDRESS
    ),
    "docs/pipelines.md": Plan(spark=EVERY, before=worlds.PIPELINES),
    "docs/sql.md": Plan(covered_by="tests/stories/documents/test_sql_document.py"),
    "docs/connectors.md": Plan(covered_by="tests/stories/documents/test_connectors_document.py"),
    "docs/spark-cluster.md": Plan(),
    "docs/mirroring.md": Plan(covered_by="tests/stories/documents/test_mirror_document.py"),
}

# The one list of commands that no test runs as they stand in a document ("" is any): how the
# command begins, and why.
NOT_RUN = {
    "": {
        "pip install": "would change the environment that the tests run in",
        "make ": "runs the tests themselves, or the demo, which tests/cli/demo/test_command.py runs",
    },
    "README.md": {
        "millstream pipeline run": "runs until Ctrl-C; tests/stories/pipelines/test_examples.py runs the example",
    },
    "docs/tutorial.md": {
        "python -m venv": "would leave the environment that the tests run in",
    },
    "docs/cli.md": {
        "millstream migrate": "needs a ZooKeeper of this name; tests/broker/migration/test_to_zookeeper.py runs it",
        "millstream up": "takes an ensemble of three; tests/cli/up/test_command.py runs one",
    },
    "docs/cluster.md": {
        "millstream migrate": "needs a ZooKeeper of this name; tests/broker/migration/test_to_zookeeper.py runs it",
        "millstream serve": "needs machines of these names; `millstream up` runs the same",
    },
    "docs/spark-cluster.md": {
        "millstream pipeline run": "needs a cluster of this name; tests/chaos/test_standalone_cluster.py has one",
        "millstream sql": "needs a cluster of this name; tests/chaos/test_standalone_cluster.py has one",
        "millstream spark up": "takes three JVMs; tests/chaos/test_standalone_cluster.py starts them",
    },
    "docs/pipelines.md": {
        "millstream pipeline run": "runs until Ctrl-C; the tutorial runs one with --once",
    },
}


class Part(NamedTuple):
    """Blocks that are run one after the other."""

    document: str
    name: str
    blocks: tuple[Block, ...]
    spark: bool

    def __str__(self) -> str:
        return f"{self.document}#{self.name}" if self.name else self.document


def chosen(section: str, sections: frozenset[str] | str) -> bool:
    return sections == EVERY or section in sections


def parts(document: str) -> list[Part]:
    """The parts of a document; one that begins anew takes the sections after it with it."""
    plan = PLANS[document]
    found: list[tuple[str, bool, list[Block]]] = []
    last = None
    for block in blocks(document):
        if not found or (block.section != last and chosen(block.section, plan.apart)):
            found.append((block.section, chosen(block.section, plan.spark), []))
        found[-1][2].append(block)
        last = block.section
    return [Part(document, section, tuple(mine), spark) for section, spark, mine in found]


def all_parts(*, spark: bool) -> list[Part]:
    planned = [one for one in documents() if one in PLANS and not PLANS[one].covered_by]
    return [part for one in planned for part in parts(one) if part.spark == spark]


def reason_not_to_run(document: str, step: Step) -> str | None:
    known = NOT_RUN[""] | NOT_RUN.get(document, {})
    return next((reason for start, reason in known.items() if step.command.startswith(start)), None)


def run_part(part: Part, session: Session) -> None:
    """Every block of a part, after what is to be there before its section."""
    plan = PLANS[part.document]
    section = None
    for number, block in enumerate(part.blocks):
        if block.section != section and block.section in plan.before:
            plan.before[block.section](session)
        section = block.section
        later = "".join(one.text for one in part.blocks[number + 1 :])
        run_block(
            session, block, later=later, skipped=lambda step: reason_not_to_run(part.document, step)
        )

"""Bad records, and the dead letters that came of them."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from millstream.client import consume
from millstream.client.dead_letters.letters import DeadLetter, dead_letter
from millstream.pipelines import Pipeline
from millstream.pipelines.runner import Run, RunOptions

SCHEMA = "id string NOT NULL, n int"
BAD = [b"{broken", b'{"n":1}', b'{"id":"x","n":"many"}']


def letters(bootstrap: str, topic: str) -> list[DeadLetter]:
    found = [dead_letter(one) for one in consume(bootstrap, topic + ".dlq")]
    return sorted(found, key=lambda one: (one.partition or 0, one.offset or 0))


def values(found: list[DeadLetter]) -> list[bytes | None]:
    return sorted((one.record.value or b"") for one in found)


def queries(pipeline: Pipeline, spark: SparkSession, checkpoint: Path) -> list[str]:
    return list(Run(pipeline, spark, RunOptions(once=True, checkpoint=str(checkpoint))).queries)

"""Bad records, and their dead letters."""

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
    rejected = [dead_letter(record) for record in consume(bootstrap, topic + ".dlq")]
    return sorted(rejected, key=lambda letter: (letter.partition or 0, letter.offset or 0))


def values(rejected: list[DeadLetter]) -> list[bytes | None]:
    return sorted((letter.record.value or b"") for letter in rejected)


def queries(pipeline: Pipeline, spark: SparkSession, checkpoint: Path) -> list[str]:
    return list(Run(pipeline, spark, RunOptions(once=True, checkpoint=str(checkpoint))).queries)

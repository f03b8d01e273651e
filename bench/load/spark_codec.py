"""The work of an executor's Python per row, without Spark and a broker.

It converts record batches to Arrow, and Arrow to record batches. Job: rows, message_bytes,
partitions, turns. The result is the CPU time of the fastest turn, which other programs disturb
least.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from bench.load.job import Job, run, say_ready, wait_go

KEYS = 10_000
RECORDS = 8_000  # of one batch: about a megabyte


def columns(job: Job) -> tuple[pa.Array, pa.Array]:
    random = np.random.default_rng(1)
    values = [random.bytes(job["message_bytes"]) for _ in range(job["rows"])]
    keys = [b"%08d" % (index % KEYS) for index in range(job["rows"])]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


def encoder(job: Job, keyed: bool) -> Callable[[], object]:
    from millstream.spark.sink.stages import EncodeJob
    from millstream.spark.sink.targets import Targets

    keys, values = columns(job)
    named = {"key": keys, "value": values} if keyed else {"value": values}
    batch = pa.RecordBatch.from_pydict(named)
    targets = Targets({"t": job["partitions"]}, {"t": 0}, {}, {}, {})
    encode = EncodeJob(
        targets, {name: name for name in named}, "t", 0, 1_000_000, job["partitions"], 0
    )
    return lambda: list(encode.payloads([batch]))


def decoder(job: Job, keyed: bool) -> Callable[[], object]:
    from millstream.spark.source.arrow_decode import Body, arrow_schema, decode, to_record_batch
    from millstream.wire.records.batch import Record, build_batch, parse_header
    from millstream.wire.records.layout import HEADER_SIZE

    keys, values = columns(job)
    bodies: list[Body] = []
    for first in range(0, job["rows"], RECORDS):
        records = [
            Record(
                number,
                1_700_000_000_000,
                keys[number].as_py() if keyed else None,
                values[number].as_py(),
                (),
            )
            for number in range(first, min(first + RECORDS, job["rows"]))
        ]
        data = build_batch(records, base_offset=first)
        bodies.append(Body(parse_header(data), data, HEADER_SIZE, len(data)))
    schema = arrow_schema()

    def work() -> object:
        return [
            to_record_batch(decode([body], 0, job["rows"], False), "t", 0, schema)
            for body in bodies
        ]

    return work


def fastest_s(work: Callable[[], Any], turns: int) -> float:
    times = []
    for _ in range(turns):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return min(times)


def work(job: Job) -> Job:
    conversions = {
        f"{direction}_{'keyed' if keyed else 'bare'}": make(job, keyed)
        for direction, make in (("decode", decoder), ("encode", encoder))
        for keyed in (False, True)
    }
    say_ready()
    wait_go()
    return {
        name: fastest_s(conversion, job["turns"]) / job["rows"] * 1e9
        for name, conversion in conversions.items()
    }


if __name__ == "__main__":
    run(work)

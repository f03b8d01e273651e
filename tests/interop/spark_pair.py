"""A driver with both sources and sinks, Spark's own connector (``kafka``) and ours
(``millstream``), on the same broker.

``python spark_pair.py CONFIG`` (JSON: bootstrap, jars, work, rate_rows) prints a line of JSON for
each finding: what two ways to read or write give, side by side, and how long each took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from millstream.spark.session import session
from millstream.spark.sink.topic_sink import TopicSink

FORMATS = ("kafka", "millstream")
VALUE_BYTES = 100


class Pair:
    def __init__(self, config: dict[str, Any]) -> None:
        self.bootstrap: str = config["bootstrap"]
        self.work = Path(config["work"])
        self.rate_rows: int = config["rate_rows"]
        self.spark = session(
            "pair", master="local[2]", conf={"spark.jars": ",".join(config["jars"])}
        )

    def say(self, name: str, **found: Any) -> None:
        print(json.dumps({"name": name, **found}), flush=True)

    # ---- reading and writing ----

    def read(self, source: str, topic: str, **options: str) -> Any:
        return self._source(self.spark.read, source, topic, options).load()

    def stream(self, source: str, topic: str, **options: str) -> Any:
        options = {"startingOffsets": "earliest"} | options
        return self._source(self.spark.readStream, source, topic, options).load()

    def _source(self, reader: Any, source: str, topic: str, options: dict[str, str]) -> Any:
        # The defaults differ: Spark's connector also reads what transactions took back.
        chosen = {"kafka.isolation.level": "read_committed", "subscribe": topic} | options
        return reader.format(source).options(**{"kafka.bootstrap.servers": self.bootstrap} | chosen)

    def write(self, sink: str, rows: Any, topic: str) -> None:
        writer = rows.write.format(sink).option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("topic", topic).mode("append").save()

    def copy(self, pair: str, rows: Any, topic: str) -> None:
        """A streaming query to its end."""
        checkpoint = str(self.work / f"checkpoint-{pair}-{topic}")
        writer = rows.writeStream.trigger(availableNow=True).option(
            "checkpointLocation", checkpoint
        )
        if pair == "millstream":
            query = TopicSink(self.bootstrap, topic, topic=topic).start(writer)
        else:
            writer = writer.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
            query = writer.option("topic", topic).start()
        query.awaitTermination()

    def collected(self, rows: Any) -> list[str]:
        """Rows as text, in the order of the log."""
        return [
            repr(row.asDict(recursive=True))
            for row in rows.orderBy("partition", "offset").collect()
        ]

    def placed(self, topic: str) -> list[list[Any]]:
        """Key, value and partition of every record."""
        rows = self.read("kafka", topic).selectExpr("hex(key)", "hex(value)", "partition").collect()
        return sorted(([*row] for row in rows), key=repr)

    # ---- what is compared ----

    def batches(self) -> None:
        """Every column of every record, headers included."""
        for topic in ("various", "transactions"):
            found = {
                name: self.collected(self.read(name, topic, includeHeaders="true"))
                for name in FORMATS
            }
            self.say(f"batch {topic}", **found)
        offsets = json.dumps({"various": {"0": 3, "1": -2}})
        ends = json.dumps({"various": {"0": 9, "1": -1}})
        options = {"startingOffsets": offsets, "endingOffsets": ends}
        found = {name: self.collected(self.read(name, "various", **options)) for name in FORMATS}
        self.say("batch of offsets", **found)

    def streams(self) -> None:
        """The same records through queries of several batches each, and back."""
        for name in FORMATS:
            rows = self.stream(name, "various", includeHeaders="true", maxOffsetsPerTrigger="150")
            kept = rows.select("key", "value", "headers", "partition", "timestamp")
            self.copy(name, kept, f"stream-{name}")
        found = {
            name: self.collected(
                self.read(name, f"stream-{name}", includeHeaders="true").drop("topic", "timestamp")
            )
            for name in FORMATS
        }
        self.say("stream to stream", **found)

    def writes(self) -> None:
        """Keyed rows go to the same partitions, whoever writes them."""
        rows = self.spark.range(500).selectExpr(
            "cast(concat('key-', id % 50) as binary) as key",
            "cast(concat('value-', id) as binary) as value",
        )
        for name in FORMATS:
            self.write(name, rows, f"keyed-{name}")
        self.say("keyed writes", **{name: self.placed(f"keyed-{name}") for name in FORMATS})

    # ---- rates ----

    def rates(self) -> None:
        rows = self.spark.range(0, self.rate_rows, 1, 2).selectExpr(
            f"cast(rpad(cast(id as string), {VALUE_BYTES}, 'x') as binary) as value",
            "cast(cast(id % 10000 as string) as binary) as key",
        )
        for name in FORMATS:
            self._rate(
                "batch write", name, lambda name=name: self.write(name, rows, f"rate-{name}")
            )
        for name in FORMATS:
            self._rate(
                "batch read", name, lambda name=name: self._noop(self.read(name, "rate-read"))
            )
        for name in FORMATS:
            self._rate("stream read", name, lambda name=name: self._stream_noop(name))

    def _rate(self, what: str, name: str, work: Callable[[], None]) -> None:
        """The second time counts."""
        work()
        before = time.perf_counter()
        work()
        seconds = time.perf_counter() - before
        self.say("rate", what=what, format=name, rows_per_s=self.rate_rows / seconds)

    def _noop(self, rows: Any) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def _stream_noop(self, name: str) -> None:
        checkpoint = str(self.work / f"noop-{name}-{time.monotonic_ns()}")
        writer = (
            self.stream(name, "rate-read").writeStream.format("noop").trigger(availableNow=True)
        )
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()


def main(arguments: Iterable[str]) -> None:
    pair = Pair(json.loads(next(iter(arguments))))
    for step in (pair.batches, pair.streams, pair.writes, pair.rates):
        step()
    pair.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

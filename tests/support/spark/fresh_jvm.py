"""Starts queries at the same time in a JVM of its own: ``fresh_jvm.py BOOTSTRAP TOPIC QUERIES
DIRECTORY``.

Prints the number of rows that each query has read. A query whose Python process did not connect in
time begins again: Spark gives it ten seconds, which a busy machine can exceed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from millstream.pipelines.run.failures import SLOW_START
from millstream.spark.session import session
from support.spark import quick_jvm


def main(bootstrap: str, topic: str, queries: int, directory: Path) -> None:
    spark = session(master="local[2]", conf=quick_jvm.CONF | quick_jvm.SMALL)
    together = threading.Barrier(queries)
    rows = [0] * queries
    errors: list[str] = []

    def read(number: int) -> None:
        def take(batch: Any, batch_id: int) -> None:
            rows[number] += batch.count()

        together.wait()
        while True:
            query = (
                spark.readStream.format("millstream")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("subscribe", topic)
                .option("startingOffsets", "earliest")
                .load()
                .writeStream.option("checkpointLocation", str(directory / str(number)))
                .foreachBatch(take)
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
                return
            except Exception as error:
                if SLOW_START not in str(error):
                    errors.append(str(error))
                    return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(queries)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"rows": rows, "errors": errors}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))

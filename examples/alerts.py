"""Arbitrary state: a sensor that has been above its limit three times in a row raises an alert, once, until it is well again.

millstream pipeline run examples/alerts.py
"""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from millstream.pipelines import Pipeline, topic

LIMIT = 90.0
IN_A_ROW = 3

pipe = Pipeline("alerts", bootstrap="localhost:9092")
pipe.stream(
    "readings", value="json", schema="sensor string NOT NULL, celsius double NOT NULL, at timestamp NOT NULL"
)


class Streak(StatefulProcessor):
    """Counts readings above the limit, for each sensor."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n int")

    def handleInputRows(self, key, rows: Iterator[pd.DataFrame], timerValues) -> Iterator[pd.DataFrame]:
        count = self._count.get()[0] if self._count.exists() else 0
        alerts = []
        for frame in rows:
            for row in frame.sort_values("at").itertuples():
                count = count + 1 if row.celsius > LIMIT else 0
                if count == IN_A_ROW:
                    alerts.append((row.sensor, row.celsius, row.at))
        self._count.update((count,))
        yield pd.DataFrame(alerts, columns=["sensor", "celsius", "at"])

    def close(self) -> None:
        pass


@pipe.flow(to=topic("alerts", key="sensor"))
def alerts(readings):
    return readings.groupBy("sensor").transformWithStateInPandas(
        statefulProcessor=Streak(),
        outputStructType="sensor string, celsius double, at timestamp",
        outputMode="append",
        timeMode="None",
    )

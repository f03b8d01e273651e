"""Replay: read again what came since a moment, without disturbing the groups that read on.

millstream serve &
python examples/clients/replay_by_time.py [BOOTSTRAP]
"""

import sys
import time
from datetime import UTC, datetime

from millstream import Admin, Consumer, Producer

MINUTE_MS = 60_000


def main(bootstrap: str) -> None:
    now_ms = int(time.time() * 1000)
    topic = f"example-temperatures-{now_ms}"  # of this run alone: in a log it would find the times of the last run too
    try:
        replay(bootstrap, topic, now_ms)
    finally:
        with Admin(bootstrap) as admin:
            admin.topics.delete(topic)


def replay(bootstrap: str, topic: str, now_ms: int) -> None:
    with Producer(bootstrap, value="json") as producer:
        for minutes_ago in range(30, 0, -5):
            producer.send(topic, {"minutes_ago": minutes_ago}, timestamp_ms=now_ms - minutes_ago * MINUTE_MS)

    with Consumer(bootstrap, topic, start="-12m", value="json", until_end=True) as consumer:
        print("the last 12 minutes:", [record.value["minutes_ago"] for record in consumer])

    moment = datetime.fromtimestamp((now_ms - 22 * MINUTE_MS) / 1000, UTC).isoformat()
    with Consumer(bootstrap, topic, start=moment, value="json", until_end=True) as consumer:
        print("since a moment:", [record.value["minutes_ago"] for record in consumer])

    with Consumer(bootstrap, topic, start=-2, value="json", until_end=True) as consumer:
        print("the last two:", [record.value["minutes_ago"] for record in consumer])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")

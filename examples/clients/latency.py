"""End-to-end latency, measured by interceptors: from when a record is made to when it is handed out.

millstream serve &
python examples/clients/latency.py [BOOTSTRAP]
"""

import sys

from millstream import Consumer, Producer
from millstream.client import LatencyInterceptor

TOPIC, GROUP = "example-pings", "example-pings"


def main(bootstrap: str) -> None:
    latency = LatencyInterceptor()  # redis=redis.Redis() keeps the sums for several processes
    with Producer(bootstrap, interceptors=[latency], linger_ms=0) as producer:
        for number in range(100):
            producer.send(TOPIC, str(number))
            producer.flush()
    with Consumer(bootstrap, TOPIC, group=GROUP, interceptors=[latency], until_end=True) as consumer:
        read = sum(1 for _record in consumer)
    p50, p99 = latency.histogram.percentiles([50, 99])
    print(f"{latency.sent} sent, {read} read; half within {p50} ms, 99 of 100 within {p99} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")

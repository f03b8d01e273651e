"""Run librdkafka's mock broker so that other processes can use it as a peer.

It prints `mock ready: HOST:PORT`, then executes lines on stdin (`topic NAME PARTITIONS`, answered
with `ok`) and ends with stdin. The mock is a thread inside librdkafka: the resident memory and the
startup of this process include a Python interpreter and librdkafka.
"""

import sys

from bench.load.rdkafka import PRODUCER, Rdkafka


def main() -> None:
    kafka = Rdkafka(PRODUCER, {})
    cluster = kafka.lib.rd_kafka_mock_cluster_new(kafka.handle, 1)
    address = kafka.lib.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    print(f"mock ready: {address}", flush=True)
    for line in sys.stdin:
        _, name, partitions = line.split()
        code = kafka.lib.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
        print("ok" if not code else kafka.error_name(code), flush=True)


if __name__ == "__main__":
    main()

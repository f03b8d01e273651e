"""Brokers of two releases in one cluster: they use the versions that both have, and one after
another is upgraded without a pause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from confluent_kafka import Producer as TransactionalProducer

from millstream.client import Consumer
from millstream.local.broker import LocalBroker
from support.clusters import ProcessCluster
from support.processes import complaints, wait_until

TOPIC = "orders"
# Serves older versions of what brokers ask each other, and says so.
OLDER = """
import sys
from millstream.wire import apis
newest = {"Fetch": 15, "WriteTxnMarkers": 1}
apis.APIS = tuple(api._replace(max_version=newest.get(api.name, api.max_version)) for api in apis.APIS)
apis.BY_KEY = {api.key: api for api in apis.APIS}
from millstream.cli.main import main
sys.exit(main())
"""


class OlderBroker(LocalBroker):
    """As a release before this one would be."""

    def command(self) -> list[str]:
        _python, _m, _module, *words = super().command()
        return [sys.executable, "-c", OLDER, *words]


def commit(bootstrap: str, first: int) -> None:
    """Ten records in a transaction, over all partitions."""
    producer = TransactionalProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"from-{first}", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(first, first + 10):
        producer.produce(TOPIC, str(number), partition=number % 3)
    producer.commit_transaction(30)


def read(bootstrap: str) -> list[int]:
    with Consumer(bootstrap, TOPIC, until_end=True) as consumer:
        return sorted(int(record.value or b"") for record in consumer)


def wait_for(bootstrap: str, count: int) -> None:
    """A transaction is committed before its markers are in every partition."""
    wait_until(lambda: read(bootstrap) == list(range(count)), f"{count} committed records")


def test_a_cluster_is_upgraded_broker_by_broker(
    process_cluster: Callable[..., ProcessCluster],
) -> None:
    cluster = process_cluster(3)
    newer = cluster.brokers
    cluster.brokers = [
        newer[0],
        *(OlderBroker(one.directory, one.settings) for one in newer[1:]),
    ]
    with cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1, 2), 1: (1, 2, 0), 2: (2, 0, 1)})
        bootstrap = cluster.bootstrap
        commit(bootstrap, 0)
        wait_for(bootstrap, 10)
        for number, node in enumerate((1, 2), 1):
            cluster.brokers[node].stop()
            upgraded = cluster.brokers[node] = newer[node]
            upgraded.port = int(bootstrap.split(",")[node].rpartition(":")[2])
            upgraded.start()
            wait_until(lambda: cluster.in_sync(TOPIC) == 3, "all in sync")
            commit(bootstrap, 10 * number)
            wait_for(bootstrap, 10 * (number + 1))
        assert complaints(cluster.logs()) == []

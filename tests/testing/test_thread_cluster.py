"""``millstream.testing.cluster``: brokers that replicate and take over, on threads
of one process.
"""

from __future__ import annotations

import pytest

from millstream.testing import Cluster
from millstream.testing.waiting import wait_until


def test_records_survive_the_death_of_their_leader(millstream_cluster: Cluster) -> None:
    cluster = millstream_cluster
    cluster.topic("orders")
    cluster.wait_in_sync("orders", 3)
    cluster.produce("orders", [b"1"])
    leader = cluster.leader("orders")
    assert leader is not None
    cluster.brokers[leader].kill()
    wait_until(lambda: cluster.leader("orders") not in (None, leader), "another broker leads")
    cluster.produce("orders", [b"2"])
    cluster.brokers[leader].start()
    cluster.wait_in_sync("orders", 3)
    assert [one.value for one in cluster.consume("orders", n=2)] == [b"1", b"2"]


@pytest.mark.millstream(brokers=2)
def test_a_group_goes_on_when_its_coordinator_dies(millstream_cluster: Cluster) -> None:
    cluster = millstream_cluster
    cluster.topic("orders", replicas=2)
    cluster.wait_in_sync("orders", 2)
    cluster.produce("orders", [b"1"])
    with cluster.consumer("orders", group="readers", until_end=True) as consumer:
        assert [one.value for one in consumer] == [b"1"]
    cluster.wait_in_sync("__consumer_offsets", 2)
    coordinator = cluster.leader("__consumer_offsets")
    assert coordinator is not None
    cluster.brokers[coordinator].kill()
    wait_until(lambda: cluster.leader("orders") == 1 - coordinator, "the other leads")
    cluster.produce("orders", [b"2"], acks=1)
    with cluster.consumer("orders", group="readers", until_end=True) as consumer:
        assert [one.value for one in consumer] == [b"2"]

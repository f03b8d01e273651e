"""How partitions that are not well are picked and shown: one broker alone never has them."""

from __future__ import annotations

import pytest

from millstream.cli.topics import _describe, _Filter
from millstream.client.admin.configs import Config
from millstream.client.admin.topics import Partition, Topic

WELL = Partition(0, 1, (1, 2, 0), (1, 2, 0))
BEHIND = Partition(1, 2, (1, 2, 0), (2, 0))
ALONE = Partition(2, 0, (2, 0, 1), (0,))
GONE = Partition(3, None, (0, 1, 2), ())
TOPIC = Topic("orders", "P64UjNghTEmVE9Fff6QwXQ", False, (WELL, BEHIND, ALONE, GONE))
CONFIGS = [Config("min.insync.replicas", "2", "DYNAMIC_TOPIC_CONFIG", False, False, ())]


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (_Filter(False, False, False), [WELL, BEHIND, ALONE, GONE]),
        (_Filter(True, False, False), [BEHIND, ALONE, GONE]),
        (_Filter(False, True, False), [GONE]),
        (_Filter(False, False, True), [ALONE, GONE]),
    ],
    ids=["all", "under-replicated", "unavailable", "under-min-isr"],
)
def test_filters_pick_the_partitions_in_that_state(wanted: _Filter, shown: list[Partition]):
    assert _describe(TOPIC, CONFIGS, wanted).shown == shown


def test_what_is_out_of_sync_is_shown(capsys: pytest.CaptureFixture[str]):
    _describe(TOPIC, CONFIGS, _Filter(False, False, False)).print()
    assert capsys.readouterr().out.splitlines() == [
        "Topic: orders  TopicId: P64UjNghTEmVE9Fff6QwXQ  PartitionCount: 4  ReplicationFactor: 3  Configs: min.insync.replicas=2",
        "  Partition: 0  Leader: 1  Replicas: 1,2,0  Isr: 1,2,0",
        "  Partition: 1  Leader: 2  Replicas: 1,2,0  Isr: 2,0  out of sync: broker 1",
        "  Partition: 2  Leader: 0  Replicas: 2,0,1  Isr: 0  out of sync: broker 2, 1",
        "  Partition: 3  Leader: none  Replicas: 0,1,2  Isr: none  out of sync: broker 0, 1, 2",
    ]

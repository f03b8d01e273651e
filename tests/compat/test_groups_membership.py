"""Groups of real clients whose members join, leave and crash under load: nothing is lost, nothing
committed comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compat.group_processes import Group, Load
from millstream.local.broker import LocalBroker

PARTITIONS = 8
KINDS = [
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("confluent", "consumer"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "sticky"),
]


@pytest.mark.parametrize(("client", "strategy"), KINDS, ids=["-".join(kind) for kind in KINDS])
def test_members_join_leave_and_crash_under_load(
    quick_broker: LocalBroker,
    new_quick_topic: Callable[..., str],
    tmp_path: Path,
    client: str,
    strategy: str,
) -> None:
    topic = new_quick_topic(PARTITIONS)
    options = {"client": client, "strategy": strategy, "session_ms": 1_500}
    with (
        Group(tmp_path, quick_broker.bootstrap, topic, topic, **options) as group,
        Load(quick_broker.bootstrap, topic) as load,
    ):
        first = group.start()
        group.wait_for_work(first)
        second, third = group.start(), group.start()
        group.wait_for_work(second, third)
        second.kill()
        first.leave()
        fourth = group.start()
        group.wait_for_work(third, fourth)
        produced = load.finish()
        group.wait_for(set(produced.values()))
        for member in group.live():
            member.leave()
        group.check(produced)

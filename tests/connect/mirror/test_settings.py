"""Settings and partitions of a mirrored topic."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.connect.mirror.settings import MAX_MS, TIMES, TopicPlan, TopicState, plan_topic


class TestSettings:
    def test_new_topic_is_like_its_source_but_keeps_timestamps(self) -> None:
        source = TopicState(6, 3, {"retention.ms": "5", "message.timestamp.type": "LogAppendTime"})
        plan = plan_topic(source, None, brokers=2, follow_settings=True)
        assert plan == TopicPlan(create=TopicState(6, 2, {"retention.ms": "5", **TIMES}))
        assert TIMES["message.timestamp.before.max.ms"] == MAX_MS

    def test_settings_follow_except_those_of_the_target(self) -> None:
        source = TopicState(2, 1, {"cleanup.policy": "compact", "min.insync.replicas": "2"})
        target = TopicState(2, 1, {"retention.ms": "9", "min.insync.replicas": "1", **TIMES})
        plan = plan_topic(source, target, brokers=1, follow_settings=True)
        assert plan == TopicPlan(set={"cleanup.policy": "compact"}, delete=("retention.ms",))

    def test_partitions_grow_and_never_shrink(self) -> None:
        single, many = TopicState(1, 1, dict(TIMES)), TopicState(4, 1, dict(TIMES))
        assert plan_topic(many, single, brokers=1, follow_settings=True).grow_to == 4
        assert not plan_topic(single, many, brokers=1, follow_settings=True)

    def test_second_direction_of_a_shared_topic_keeps_settings(self) -> None:
        source, target = (
            TopicState(1, 1, {"retention.ms": "1"}),
            TopicState(1, 1, {"retention.ms": "2"}),
        )
        assert not plan_topic(source, target, brokers=1, follow_settings=False)

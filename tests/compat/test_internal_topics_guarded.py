"""Internal topics belong to the coordinators: clients cannot write to them, break their shape, or
make them wrong by looking.
"""

from __future__ import annotations

from collections.abc import Callable

from compat.waiting import wait_until
from millstream.client import Admin
from millstream.core.errors import ErrorCode
from millstream.local.broker import LocalBroker
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from millstream.wire.records.batch import build_batch
from millstream.wire.records.payload import Record
from support.raw import RawClient, produce


def batch() -> bytes:
    return build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())])


OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
BrokerFactory = Callable[..., LocalBroker]


def look(client: RawClient, *names: str):
    asked = [MetadataRequestTopic(name=name) for name in names]
    return {
        t.name: t
        for t in client.call(
            MetadataRequest(topics=asked, allow_auto_topic_creation=True), 12
        ).topics
    }


def made(client: RawClient, *names: str):
    """Ask until the topics exist with all leaders: asking creates them in the background."""

    def ready() -> bool:
        topics = look(client, *names).values()
        rows = [*topics, *(partition for topic in topics for partition in topic.partitions)]
        return not any(row.error_code for row in rows)

    wait_until(ready, f"{names}")
    return look(client, *names)


def test_looking_for_an_internal_topic_makes_it_as_its_coordinator_would(broker: BrokerFactory):
    """As an ordinary topic it would lose its records to retention."""
    running = broker({"offsets.topic.num.partitions": 5, "transaction.state.log.num.partitions": 4})
    with RawClient(running.bootstrap) as client:
        found = made(client, OFFSETS, TRANSACTIONS)
    assert [len(found[name].partitions) for name in (OFFSETS, TRANSACTIONS)] == [5, 4]
    with Admin(running.bootstrap) as admin:
        for name in (OFFSETS, TRANSACTIONS):
            assert admin.configs.overrides("topic", name)["cleanup.policy"] == "compact"


def test_clients_cannot_write_to_internal_topics(broker: BrokerFactory):
    with RawClient(broker().bootstrap) as client:
        made(client, OFFSETS, "mine")
        assert produce(client, OFFSETS, 0, batch()).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert produce(client, "mine", 0, batch()).error_code == 0


def test_internal_topics_get_no_more_partitions(broker: BrokerFactory):
    """Every group would belong to another partition, and its offsets would not be found."""
    with RawClient(broker().bootstrap) as client:
        made(client, OFFSETS)
        asked = CreatePartitionsTopic(name=OFFSETS, count=60, assignments=None)
        (told,) = client.call(CreatePartitionsRequest(topics=[asked], timeout_ms=1000), 3).results
        assert told.error_code == ErrorCode.INVALID_PARTITIONS


def test_the_consumer_protocol_is_off_below_group_version_1(broker: BrokerFactory):
    with RawClient(broker().bootstrap) as client:
        row = FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
        assert client.call(UpdateFeaturesRequest(feature_updates=[row]), 1).error_code == 0
        heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
        assert client.call(heartbeat, 0).error_code == ErrorCode.UNSUPPORTED_VERSION
        (described,) = client.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 0).groups
        assert described.error_code == ErrorCode.UNSUPPORTED_VERSION

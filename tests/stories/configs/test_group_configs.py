"""Settings of single groups and of client metrics subscriptions.

Both are stored and listed; members follow those of their group.
"""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.config import BrokerConfig, check_group_overrides, group_values
from millstream.core.errors import ErrorCode
from millstream.core.settings import SettingError
from millstream.sim.world.disk import SimDisk
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

CLIENT_METRICS, GROUP = 16, 32
SET, DELETE = 0, 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SETTINGS: dict[str, object] = {"log.dirs": "/data", "offsets.topic.num.partitions": 2}
# The minimum values, so that a silent member expires within a moment.
IMPATIENT = SETTINGS | {
    "group.consumer.min.session.timeout.ms": 2,
    "group.consumer.min.heartbeat.interval.ms": 1,
}


def alter(client: RawClient, kind: int, name: str, **changes: str | None) -> Any:
    rows = [
        AlterableConfig(
            name=key.replace("_", "."),
            config_operation=DELETE if value is None else SET,
            value=value,
        )
        for key, value in changes.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
    (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    return answer


def describe(client: RawClient, kind: int, name: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, 4).results
    assert result.error_code == 0, result
    return {row.name: row for row in result.configs}


def listed(client: RawClient, kind: int, version: int = 1) -> list[str]:
    request = ListConfigResourcesRequest(resource_types=[kind] if version else [])
    return sorted(row.resource_name for row in client.call(request, version).config_resources)


def find(client: RawClient, group: str) -> None:
    coordinators = client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
    assert coordinators.coordinators[0].error_code == 0


def join(client: RawClient, group: str, member: str) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    return client.call(request, 1)


def beat(client: RawClient, group: str, member: str, epoch: int) -> Any:
    return client.call(
        ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch), 1
    )


# ---- groups ----


def test_members_receive_the_heartbeat_interval_of_their_group() -> None:
    with (
        InProcessBroker(SETTINGS, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "orders")
        find(client, "readers")
        assert (
            alter(client, GROUP, "readers", consumer_heartbeat_interval_ms="6000").error_code == 0
        )
        joined = join(client, "readers", "m")
        assert joined.heartbeat_interval_ms == 6000
        assert join(client, "others", "m").heartbeat_interval_ms == 5000
        assert (
            alter(client, GROUP, "readers", consumer_heartbeat_interval_ms="7000").error_code == 0
        )
        assert beat(client, "readers", "m", joined.member_epoch).heartbeat_interval_ms == 7000
        assert alter(client, GROUP, "readers", consumer_heartbeat_interval_ms=None).error_code == 0
        assert beat(client, "readers", "m", joined.member_epoch).heartbeat_interval_ms == 5000


def test_silent_members_expire_after_the_timeout_of_their_group() -> None:
    with (
        InProcessBroker(IMPATIENT, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "orders")
        find(client, "hasty")
        changes = {"consumer_session_timeout_ms": "20", "consumer_heartbeat_interval_ms": "1"}
        assert alter(client, GROUP, "hasty", **changes).error_code == 0
        assert join(client, "hasty", "m").error_code == 0
        patient = join(client, "patient", "m")

        def members() -> int:
            shards = [shard for _, shard in broker.broker.parts.coordinators.groups.host.shards()]
            groups = [shard.state.consumer.get("hasty") for shard in shards]
            return sum(len(group.members) for group in groups if group is not None)

        while broker.run(members):
            pass
        assert beat(client, "patient", "m", patient.member_epoch).error_code == 0


def test_group_settings_survive_a_restart() -> None:
    disk = SimDisk()
    names = ["readers", "a/b", "..", "süß", "50%"]
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        for name in names:
            assert alter(client, GROUP, name, consumer_session_timeout_ms="50000").error_code == 0
            assert (
                alter(client, CLIENT_METRICS, name, metrics="*", interval_ms="1000").error_code == 0
            )
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        find(client, "readers")
        assert listed(client, GROUP) == sorted(names)
        assert (
            listed(client, CLIENT_METRICS)
            == listed(client, CLIENT_METRICS, version=0)
            == sorted(names)
        )
        for name in names:
            assert describe(client, GROUP, name)[SESSION].value == "50000"
            assert describe(client, CLIENT_METRICS, name)["interval.ms"].value == "1000"
        settings = broker.run(lambda: broker.broker.parts.coordinators.groups.settings)
        assert (settings.session_timeout_ms("a/b"), settings.session_timeout_ms("c")) == (
            50_000,
            45_000,
        )


def test_group_shows_its_settings_and_those_of_the_broker_behind_them() -> None:
    with (
        InProcessBroker(SETTINGS, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        alter(client, GROUP, "readers", consumer_session_timeout_ms="50000")
        rows = describe(client, GROUP, "readers")
        assert (rows[SESSION].value, rows[SESSION].config_source) == ("50000", 8)
        assert [(row.name, row.value, row.source) for row in rows[SESSION].synonyms] == [
            (SESSION, "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]
        assert (rows[HEARTBEAT].value, rows[HEARTBEAT].config_source) == ("5000", 5)


def test_group_without_settings_is_not_listed() -> None:
    with (
        InProcessBroker(SETTINGS, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        alter(client, GROUP, "readers", consumer_session_timeout_ms="50000")
        assert listed(client, GROUP) == ["readers"]
        alter(client, GROUP, "readers", consumer_session_timeout_ms=None)
        assert listed(client, GROUP) == []
        assert alter(client, GROUP, "readers", consumer_session_timeout_ms="1").error_code == 40
        assert listed(client, GROUP) == []


def config(**texts: str) -> BrokerConfig:
    return BrokerConfig.from_texts({name.replace("_", "."): text for name, text in texts.items()})


def test_narrower_bounds_apply_to_groups_set_before() -> None:
    broker = config(group_consumer_max_session_timeout_ms="48000")
    values = group_values(broker, {SESSION: "50000"})
    assert (values[SESSION], values[HEARTBEAT]) == (48_000, 5_000)


@pytest.mark.parametrize(
    "texts", [{SESSION: "9"}, {HEARTBEAT: "45000"}, {SESSION: "7", HEARTBEAT: "7"}]
)
def test_session_must_be_longer_than_the_heartbeat_interval(texts: dict[str, str]) -> None:
    broker = config(
        group_consumer_min_session_timeout_ms="1",
        group_consumer_min_heartbeat_interval_ms="1",
        group_consumer_max_heartbeat_interval_ms="60000",
    )
    with pytest.raises(SettingError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        check_group_overrides(broker, texts)
    check_group_overrides(broker, {SESSION: "9", HEARTBEAT: "8"})
    check_group_overrides(broker, {})


# ---- client metrics ----


def test_subscriptions_are_stored_but_no_client_is_asked_for_metrics() -> None:
    """The broker has no receiver for them. Apache Kafka without a receiver stores subscriptions
    too, and drops pushed metrics.
    """
    with (
        InProcessBroker(SETTINGS, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        alter(client, CLIENT_METRICS, "all", metrics="*", interval_ms="1000", match="client_id=.*")
        rows = describe(client, CLIENT_METRICS, "all")
        assert {name: row.value for name, row in rows.items()} == {
            "interval.ms": "1000",
            "match": "client_id=.*",
            "metrics": "*",
        }
        assert {row.config_source for row in rows.values()} == {7}
        subscriptions = client.call(
            GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)), 0
        )
        assert (subscriptions.error_code, subscriptions.requested_metrics) == (ErrorCode.NONE, [])
        alter(client, CLIENT_METRICS, "all", metrics=None, interval_ms=None, match=None)
        assert listed(client, CLIENT_METRICS) == []

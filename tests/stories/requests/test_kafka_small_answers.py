"""Answers that were held against Apache Kafka 4.3.1: settings, limits, ACLs, quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.core.config import BrokerConfig
from millstream.core.errors import ErrorCode
from millstream.core.settings import SettingError
from millstream.wire.apis import BY_KEY
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlteredEntity,
    QuotaAlteration,
    QuotaOperation,
)
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.in_process import InProcessBroker
from support.raw import RawClient

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
Synonyms = list[tuple[str, str | None, int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": tmp_path / "data", "log.roll.hours": 24}) as broker:
        yield broker


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def alter(client: RawClient, name: str, setting: str, value: str | None) -> tuple[int, str | None]:
    row = AlterableConfig(
        name=setting, config_operation=SET if value is not None else DELETE, value=value
    )
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=[row])
    (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    return answer.error_code, answer.error_message


def described(
    client: RawClient, kind: int, name: str, keys: Sequence[str] | None = None
) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = client.call(request, 4).results
    assert result.error_code == 0, result
    return {row.name: row for row in result.configs}


def synonyms(row: Any) -> Synonyms:
    return [(one.name, one.value, one.source) for one in row.synonyms]


def create(client: RawClient, name: str, **configs: str) -> int:
    rows = [
        CreatableTopicConfig(name=key.replace("_", "."), value=text)
        for key, text in configs.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=rows)
    (made,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
    return int(made.error_code)


# ---- settings ----


def test_tiered_storage_settings_have_kafkas_names(client: RawClient) -> None:
    assert create(client, "orders", remote_log_copy_disable="true") == 0
    assert described(client, TOPIC, "orders")["remote.log.copy.disable"].value == "true"
    assert create(client, "others", remote_copy_disable="true") == ErrorCode.INVALID_CONFIG


def test_topic_synonyms_begin_with_the_finest_unit(client: RawClient) -> None:
    """A value that comes from another unit alone (log.roll.hours) is shown as a default without
    synonyms.
    """
    assert create(client, "orders", flush_messages="5") == 0
    rows = described(client, TOPIC, "orders")
    shown = {name: (row.value, row.config_source, synonyms(row)) for name, row in rows.items()}
    assert shown["retention.ms"] == ("604800000", 5, [])
    assert shown["segment.ms"] == ("86400000", 5, [])
    assert shown["flush.ms"] == ("9223372036854775807", 5, [])
    assert shown["segment.jitter.ms"] == ("0", 5, [])
    assert shown["leader.replication.throttled.replicas"] == ("", 5, [])
    assert shown["remote.storage.enable"] == ("false", 5, [])
    assert shown["segment.bytes"] == ("1073741824", 5, [("log.segment.bytes", "1073741824", 5)])
    flush: Synonyms = [
        ("flush.messages", "5", 1),
        ("log.flush.interval.messages", "9223372036854775807", 5),
    ]
    assert shown["flush.messages"] == ("5", 1, flush)


def test_synonyms_include_other_units_behind_the_finest(
    client: RawClient, broker: InProcessBroker
) -> None:
    node = str(broker.broker.parts.node_id)
    assert create(client, "orders") == 0
    assert alter(client, node, "log.retention.ms", "1000") == (0, None)
    assert alter(client, "", "log.retention.ms", "2000") == (0, None)
    expected: Synonyms = [
        ("log.retention.ms", "1000", 2),
        ("log.retention.ms", "2000", 3),
        ("log.retention.hours", "168", 5),
    ]
    assert synonyms(described(client, TOPIC, "orders")["retention.ms"]) == expected
    rows = described(client, BROKER, node)
    assert synonyms(rows["log.retention.ms"]) == expected
    assert synonyms(rows["log.retention.hours"]) == expected[2:]
    assert (rows["log.retention.minutes"].value, synonyms(rows["log.retention.minutes"])) == (
        None,
        [],
    )
    assert synonyms(rows["log.roll.hours"]) == [
        ("log.roll.hours", "24", 4),
        ("log.roll.hours", "168", 5),
    ]
    assert synonyms(rows["log.flush.interval.ms"]) == []
    scheduler = "log.flush.scheduler.interval.ms"
    assert synonyms(rows[scheduler]) == [(scheduler, "9223372036854775807", 5)]


def test_cluster_wide_min_insync_replicas_is_shown_for_topics(client: RawClient) -> None:
    assert create(client, "orders") == 0
    assert alter(client, "", "min.insync.replicas", "2") == (0, None)
    row = described(client, TOPIC, "orders", ["min.insync.replicas"])["min.insync.replicas"]
    assert (row.value, row.config_source) == ("2", 3)
    assert synonyms(row) == [("min.insync.replicas", "2", 3), ("min.insync.replicas", "1", 5)]


def test_unknown_broker_settings_are_stored_and_hidden(
    client: RawClient, broker: InProcessBroker
) -> None:
    node, name = str(broker.broker.parts.node_id), "my.plugin.secret"
    assert alter(client, node, name, "x") == (0, None)
    assert alter(client, "", name, "y") == (0, None)
    row = described(client, BROKER, node)[name]
    assert (row.value, row.config_source, row.read_only, row.is_sensitive) == (None, 2, True, True)
    assert (row.config_type, row.documentation) == (0, None)
    assert synonyms(row) == [(name, None, 2), (name, None, 3)]
    assert synonyms(described(client, BROKER, "")[name]) == [(name, None, 3)]
    for resource in (node, ""):
        assert alter(client, resource, name, None) == (0, None)
    assert name not in described(client, BROKER, node)


def test_limits_that_lock_everybody_out_are_refused(
    client: RawClient, broker: InProcessBroker
) -> None:
    for resource in (str(broker.broker.parts.node_id), ""):
        code, message = alter(client, resource, "max.connections", "0")
        assert (code, "Invalid max.connections 0" in (message or "")) == (
            ErrorCode.INVALID_REQUEST,
            True,
        )
        code, message = alter(client, resource, "max.connections.per.ip", "0")
        assert code == ErrorCode.INVALID_REQUEST
        assert (
            message is not None
            and "only if max.connections.per.ip.overrides property is set" in message
        )
    assert alter(client, "", "max.connections.per.ip.overrides", "127.0.0.1:100") == (0, None)
    assert alter(client, "", "max.connections.per.ip", "0") == (0, None)
    code, _message = alter(client, "", "max.connections.per.ip.overrides", None)
    assert code == ErrorCode.INVALID_REQUEST, "what lets this client in cannot be taken away"
    with RawClient(broker.bootstrap) as other:
        assert create(other, "orders") == 0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"heartbeat.interval.ms": "3000"},
            "heartbeat.interval.ms .3000. must be greater than or equal to",
        ),
        (
            {"heartbeat.interval.ms": "16000"},
            "heartbeat.interval.ms .16000. must be less than or equal to",
        ),
        (
            {"session.timeout.ms": "44999"},
            "session.timeout.ms .44999. must be greater than or equal to",
        ),
        (
            {"session.timeout.ms": "60001"},
            "session.timeout.ms .60001. must be less than or equal to",
        ),
        (
            {"max.session.timeout.ms": "1000"},
            "max.session.timeout.ms .1000. must be greater than or equal to",
        ),
        (
            {"assignment.interval.ms": "15001"},
            "assignment.interval.ms .15001. must be less than or equal to",
        ),
        (
            {"min.session.timeout.ms": "1", "session.timeout.ms": "5000"},
            "heartbeat.interval.ms .5000. must be less than group.consumer.session.timeout.ms .5000.",
        ),
    ],
)
def test_group_settings_beyond_their_own_bounds_are_refused_at_startup(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingError, match=complaint):
        BrokerConfig.from_texts({f"group.consumer.{name}": text for name, text in settings.items()})


# ---- limits, ACLs, quotas ----


def test_request_adds_at_most_ten_thousand_partitions(client: RawClient) -> None:
    for name in ("first", "second"):
        assert create(client, name) == 0

    def grow(*counts: int) -> list[int]:
        rows = [
            CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in zip(("first", "second"), counts, strict=False)
        ]
        request = CreatePartitionsRequest(topics=rows, timeout_ms=10_000, validate_only=True)
        return [row.error_code for row in client.call(request, 3).results]

    assert grow(10_001) == [0]
    assert grow(10_002) == [ErrorCode.POLICY_VIOLATION]
    assert grow(5_001, 5_001) == [0, 0]
    assert grow(5_001, 5_002) == [0, ErrorCode.POLICY_VIOLATION]
    assert grow(1, 10_001) == [ErrorCode.INVALID_PARTITIONS, 0], "what is refused does not count"


@pytest.mark.parametrize("version", range(1, 4))
def test_acl_requests_answer_that_security_is_disabled(client: RawClient, version: int) -> None:
    nothing: dict[str, Any] = {
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
    }
    answer = client.call(DescribeAclsRequest(**nothing), version)
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
    creation = AclCreation(resource_type=2, resource_name="orders", principal="User:a", host="*")
    made = client.call(CreateAclsRequest(creations=[creation, creation]), version).results
    assert [row.error_code for row in made] == [ErrorCode.SECURITY_DISABLED] * 2
    gone = client.call(
        DeleteAclsRequest(filters=[DeleteAclsFilter(**nothing)]), version
    ).filter_results
    assert [(row.error_code, row.matching_acls) for row in gone] == [
        (ErrorCode.SECURITY_DISABLED, [])
    ]


@pytest.mark.parametrize("version", range(2))
def test_no_client_has_a_quota_and_none_can_be_set(client: RawClient, version: int) -> None:
    assert BY_KEY[48].newest == BY_KEY[49].newest == 1
    user = ComponentData(entity_type="user", match_type=2, match=None)
    answer = client.call(DescribeClientQuotasRequest(components=[user]), version)
    assert (answer.error_code, answer.entries) == (0, [])
    strange = ComponentData(entity_type="colour", match_type=2, match=None)
    answer = client.call(DescribeClientQuotasRequest(components=[strange]), version)
    assert (answer.error_code, answer.entries) == (ErrorCode.UNSUPPORTED_VERSION, None)
    alteration = QuotaAlteration(
        entity=[AlteredEntity(entity_type="user", entity_name="a")],
        ops=[QuotaOperation(key="producer_byte_rate", value=1.0)],
    )
    (row,) = client.call(AlterClientQuotasRequest(entries=[alteration]), version).entries
    assert row.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(one.entity_type, one.entity_name) for one in row.entity] == [("user", "a")]


def test_malformed_frames_log_one_line(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for key in range(20):
        with RawClient(broker.bootstrap) as client:
            client.write(b"\x00\x00\x00\x0a" + (9_000 + key).to_bytes(2, "big") + bytes(8))
            client.wait_closed()
    lines = [one for one in caplog.messages if "closing connection" in one]
    assert len(lines) == 1 and "unknown API key 9000" in lines[0]

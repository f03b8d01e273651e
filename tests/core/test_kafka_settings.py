"""Settings that only Apache Kafka has: ignored with a note, or refused with a reason."""

from __future__ import annotations

import pytest

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig
from millstream.core.kafka_settings import IGNORED, REFUSED, is_known_to_kafka, refusal
from millstream.core.settings import SettingError

SHIPPED_WITH_KAFKA_4 = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    ),
    "num.network.threads": "3",
    "num.io.threads": "8",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def test_ignored_names_have_no_row_and_one_reason() -> None:
    names = [name for ignored in IGNORED for name in ignored.names]
    assert len(names) == len(set(names))
    refused = [name for row in REFUSED for name in row.names]
    assert not set(names) & set(refused)
    assert not set(names) & set(BROKER_SETTINGS)


def test_ignored_settings_are_named_and_change_nothing() -> None:
    config = BrokerConfig.from_texts(
        {"inter.broker.protocol.version": "3.9", "telemetry.max.bytes": "x", "num.io.threads": "8"}
    )
    assert config.inert_names() == [
        "inter.broker.protocol.version",
        "num.io.threads",
        "telemetry.max.bytes",
    ]
    assert set(config.static) == {"num.io.threads"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("ssl.keystore.location", "/k.jks", "TLS is not supported yet"),
        ("ssl.client.auth", "required", "TLS is not supported yet"),
        ("listener.name.internal.ssl.keystore.location", "/k", "TLS is not supported yet"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512", "SASL is not supported yet"),
        ("listener.name.public.scram-sha-512.sasl.jaas.config", "x", "SASL is not supported yet"),
        ("listener.name.public.plain.sasl.jaas.config", "x", "SASL is not supported yet"),
        ("authorizer.class.name", "org.apache.StandardAuthorizer", "there are no ACLs yet"),
        ("super.users", "User:admin", "there are no ACLs yet"),
        ("allow.everyone.if.no.acl.found", "false", "there are no ACLs yet"),
        ("create.topic.policy.class.name", "a.B", "Java classes"),
        ("zookeeper.set.acl", "true", "ZooKeeper is not encrypted"),
        ("remote.log.storage.system.enable", "TRUE", "tiered storage"),
        ("rsm.config.bucket", "b", "tiered storage"),
    ],
)
def test_settings_that_promise_something_are_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(SettingError, match=f"{name} is refused: .*{reason}"):
        BrokerConfig.from_texts({name: text, "zookeeper.connect": "localhost:2181"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("authorizer.class.name", ""),
        ("ssl.client.auth", "none"),
        ("allow.everyone.if.no.acl.found", "true"),
        ("zookeeper.set.acl", "false"),
        ("remote.log.storage.system.enable", "false"),
        ("ssl.endpoint.identification.algorithm", " "),
    ],
)
def test_values_that_promise_nothing_are_accepted(name: str, text: str) -> None:
    assert refusal(name, text) is None
    config = BrokerConfig.from_texts({name: text})
    assert name in config.inert_names()


@pytest.mark.parametrize("roles", ["controller", " controller "])
def test_controller_without_broker_is_refused(roles: str) -> None:
    with pytest.raises(SettingError, match="elect it in ZooKeeper"):
        BrokerConfig.from_texts({"process.roles": roles})


def test_name_that_no_version_of_kafka_has_is_unknown() -> None:
    assert not is_known_to_kafka("num.partition")
    with pytest.raises(
        SettingError, match=r"Unknown setting num\.partition; did you mean num\.partitions\?"
    ):
        BrokerConfig.from_texts({"num.partition": "3"})


def test_nearest_name_may_be_one_that_is_ignored() -> None:
    with pytest.raises(SettingError, match=r"did you mean telemetry\.max\.bytes\?"):
        BrokerConfig.from_texts({"telemetry.max.byte": "3"})


def test_file_that_kafka_ships_is_accepted() -> None:
    config = BrokerConfig.from_texts(SHIPPED_WITH_KAFKA_4)
    assert "share.coordinator.state.topic.min.isr" in config.inert_names()

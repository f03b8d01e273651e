"""AlterConfigs and IncrementalAlterConfigs: the checks that both share, and their
one difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from millstream.broker.configs.alteration import MAX_CHANGES
from millstream.core.errors import ErrorCode
from millstream.sim.world.disk import SimDisk
from millstream.wire.messages import alter_configs as whole
from millstream.wire.messages import incremental_alter_configs as incremental
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

TOPIC, LOGGER, UNKNOWN_TYPE = 2, 8, 77
SET = 0

Rows = Sequence[tuple[str, str]]
Request = Callable[..., Any]


def replacing(*resources: tuple[int, str, Rows], validate_only: bool = False) -> Any:
    asked = [
        whole.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[whole.AlterableConfig(name=key, value=value) for key, value in rows],
        )
        for kind, name, rows in resources
    ]
    return whole.AlterConfigsRequest(resources=asked, validate_only=validate_only)


def changing(*resources: tuple[int, str, Rows], validate_only: bool = False) -> Any:
    asked = [
        incremental.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                incremental.AlterableConfig(name=key, config_operation=SET, value=value)
                for key, value in rows
            ],
        )
        for kind, name, rows in resources
    ]
    return incremental.IncrementalAlterConfigsRequest(resources=asked, validate_only=validate_only)


BOTH = pytest.mark.parametrize("request_of", [replacing, changing])


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": "/data"}, files=SimDisk()) as broker:
        yield broker


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def codes(client: RawClient, request: Any) -> list[ErrorCode]:
    return [ErrorCode(row.error_code) for row in client.call(request, 1).responses]


def overrides(broker: InProcessBroker, topic: str) -> dict[str, str]:
    image: Any = broker.broker.image
    return dict(image.topic_configs.get(topic, {}))


@BOTH
def test_duplicate_resource_is_rejected_and_others_are_altered(
    broker: InProcessBroker, client: RawClient, request_of: Request
) -> None:
    for topic in (twice := f"twice-{request_of.__name__}", once := f"once-{request_of.__name__}"):
        create_topic(client, topic)
    rows = [("retention.ms", "5")]
    request = request_of((TOPIC, twice, rows), (TOPIC, once, rows), (TOPIC, twice, rows))
    assert codes(client, request) == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert (overrides(broker, twice), overrides(broker, once)) == ({}, {"retention.ms": "5"})


@BOTH
def test_each_resource_has_its_own_error(client: RawClient, request_of: Request) -> None:
    create_topic(client, topic := f"errors-{request_of.__name__}")
    request = request_of(
        (TOPIC, "missing", [("retention.ms", "5")]),
        (UNKNOWN_TYPE, "x", [("a", "b")]),
        (TOPIC, topic, [("retention.ms", "soon")]),
        (TOPIC, f"{topic}-2", [("retention.ms", "5")] * (MAX_CHANGES + 1)),
    )
    assert codes(client, request) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    ]


@BOTH
def test_validate_only_changes_nothing(
    broker: InProcessBroker, client: RawClient, request_of: Request
) -> None:
    create_topic(client, topic := f"validated-{request_of.__name__}")
    request = request_of((TOPIC, topic, [("retention.ms", "5")]), validate_only=True)
    assert codes(client, request) == [ErrorCode.NONE]
    assert overrides(broker, topic) == {}


@pytest.mark.parametrize(
    ("request_of", "left"),
    [(replacing, {"segment.ms": "7"}), (changing, {"retention.ms": "5", "segment.ms": "7"})],
)
def test_alter_configs_drops_settings_that_are_not_named(
    broker: InProcessBroker, client: RawClient, request_of: Request, left: dict[str, str]
) -> None:
    create_topic(client, topic := f"left-{request_of.__name__}")
    for name, value in (("retention.ms", "5"), ("segment.ms", "7")):
        assert codes(client, request_of((TOPIC, topic, [(name, value)]))) == [ErrorCode.NONE]
    assert overrides(broker, topic) == left


@pytest.mark.parametrize(
    ("request_of", "code"), [(replacing, ErrorCode.INVALID_REQUEST), (changing, ErrorCode.NONE)]
)
def test_loggers_are_altered_incrementally_only(
    broker: InProcessBroker, client: RawClient, request_of: Request, code: ErrorCode
) -> None:
    node = str(broker.broker.parts.node_id)
    request = request_of((LOGGER, node, [("millstream.fetcher", "INFO")]), validate_only=True)
    assert codes(client, request) == [code]

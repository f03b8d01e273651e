"""Edge cases of the settings of groups and of client metrics subscriptions. What is right is
validated only, so nothing is kept.
"""

from __future__ import annotations

from typing import Any

from compat.edge_case import Case, Expected
from compat.raw_requests import (
    APPEND,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    alter_configs,
    alter_incrementally,
    describe_configs,
)
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
NOT_SERVED = "groups of this type are not served here, so nothing could come of the setting"

Row = tuple[str, Expected, tuple[tuple[str, int, str | None], ...]]


def alters(kind: int, rows: list[Row], **more: Any) -> list[Case]:
    return [
        Case(
            f"{'group' if kind == GROUP else 'metrics'}: {name}",
            "IncrementalAlterConfigs",
            1,
            lambda w, changes=changes: alter_incrementally(
                kind, w["of-mine"], *changes, validate_only=True
            ),
            expect,
            **more,
        )
        for name, expect, changes in rows
    ]


GROUPS: list[Row] = [
    ("session and heartbeat", E.NONE, ((SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"))),
    ("as long as may be", E.NONE, ((SESSION, SET, "60000"),)),
    ("too long a session", E.INVALID_CONFIG, ((SESSION, SET, "60001"),)),
    ("too short a session", E.INVALID_CONFIG, ((SESSION, SET, "1"),)),
    ("no session", E.INVALID_CONFIG, ((SESSION, SET, "0"),)),
    ("too rare a heartbeat", E.INVALID_CONFIG, ((HEARTBEAT, SET, "15001"),)),
    ("too many heartbeats", E.INVALID_CONFIG, ((HEARTBEAT, SET, "1"),)),
    ("assigned at once", E.NONE, ((ASSIGNMENT, SET, "0"),)),
    ("assigned too seldom", E.INVALID_CONFIG, ((ASSIGNMENT, SET, "15001"),)),
    ("no number", E.INVALID_CONFIG, ((SESSION, SET, "long"),)),
    ("empty", E.INVALID_CONFIG, ((SESSION, SET, ""),)),
    ("null", E.INVALID_REQUEST, ((SESSION, SET, None),)),
    ("unknown", E.INVALID_CONFIG, (("foo", SET, "1"),)),
    ("of a topic", E.INVALID_CONFIG, (("retention.ms", SET, "1"),)),
    ("one good, one bad", E.INVALID_CONFIG, ((SESSION, SET, "50000"), ("foo", SET, "1"))),
    ("append to a number", E.INVALID_CONFIG, ((SESSION, APPEND, "1"),)),
    ("delete what was not set", E.NONE, ((SESSION, DELETE, None),)),
    ("delete what is unknown", E.NONE, (("foo", DELETE, None),)),
    ("twice", E.INVALID_REQUEST, ((SESSION, SET, "50000"), (SESSION, SET, "50001"))),
    ("nothing", E.NONE, ()),
]
OTHER_TYPES: list[Row] = [
    ("of a share group", E.INVALID_CONFIG, (("share.isolation.level", SET, "read_committed"),)),
    ("of a streams group", E.INVALID_CONFIG, (("streams.num.standby.replicas", SET, "1"),)),
]
METRICS: list[Row] = [
    (
        "all of it",
        E.NONE,
        (("metrics", SET, "*"), ("interval.ms", SET, "1000"), ("match", SET, "client_id=a.*")),
    ),
    ("as rare as may be", E.NONE, (("interval.ms", SET, "3600000"),)),
    ("too often", E.INVALID_REQUEST, (("interval.ms", SET, "99"),)),
    ("too rare", E.INVALID_REQUEST, (("interval.ms", SET, "3600001"),)),
    ("no number", E.INVALID_CONFIG, (("interval.ms", SET, "often"),)),
    ("null", E.INVALID_REQUEST, (("interval.ms", SET, None),)),
    ("unknown", E.INVALID_REQUEST, (("foo", SET, "1"),)),
    ("match by what no client is known by", E.INVALID_CONFIG, (("match", SET, "colour=red"),)),
    ("match without a pattern", E.INVALID_CONFIG, (("match", SET, "client_id"),)),
    ("match by nothing", E.INVALID_CONFIG, (("match", SET, "client_id="),)),
    ("match by no expression", E.INVALID_CONFIG, (("match", SET, "client_id=["),)),
    ("match by two", E.INVALID_CONFIG, (("match", SET, "client_id=a=b"),)),
    ("match by several", E.NONE, (("match", SET, "client_id=a, client_software_name = b.*"),)),
    ("append to a list", E.INVALID_CONFIG, (("metrics", APPEND, "org.apache.kafka.producer."),)),
    (
        "subtract from a list",
        E.INVALID_CONFIG,
        (("metrics", SUBTRACT, "org.apache.kafka.producer."),),
    ),
    ("append to a number", E.INVALID_CONFIG, (("interval.ms", APPEND, "1"),)),
    ("delete what was not set", E.NONE, (("metrics", DELETE, None),)),
]

NAMELESS = [
    Case(
        "group without a name",
        "IncrementalAlterConfigs",
        1,
        lambda w: alter_incrementally(GROUP, "", (SESSION, SET, "50000")),
        E.INVALID_REQUEST,
    ),
    Case(
        "metrics without a name",
        "IncrementalAlterConfigs",
        1,
        lambda w: alter_incrementally(CLIENT_METRICS, "", ("metrics", SET, "*")),
        E.INVALID_REQUEST,
    ),
]
REPLACED = [
    Case(
        "group",
        "AlterConfigs",
        2,
        lambda w: alter_configs(GROUP, w["of-mine"], (SESSION, "50000"), validate_only=True),
        E.NONE,
    ),
    Case(
        "group, wrong",
        "AlterConfigs",
        2,
        lambda w: alter_configs(GROUP, w["of-mine"], (SESSION, "1"), validate_only=True),
        E.INVALID_CONFIG,
    ),
    Case(
        "metrics",
        "AlterConfigs",
        2,
        lambda w: alter_configs(CLIENT_METRICS, w["of-mine"], ("metrics", "*"), validate_only=True),
        E.NONE,
    ),
]
SHOWN = [
    Case(
        "a group that nobody knows",
        "DescribeConfigs",
        4,
        lambda w: describe_configs(GROUP, w["unknown"], SESSION),
        E.NONE,
        {
            "config_type": [3],
            "read_only": [False],
            "is_sensitive": [False],
        },
    ),
    Case(
        "client metrics that nobody wants",
        "DescribeConfigs",
        4,
        lambda w: describe_configs(CLIENT_METRICS, w["unknown"]),
        E.NONE,
        {
            "name": ["interval.ms", "match", "metrics"],
            "value": ["300000", "", ""],
            "config_source": [5, 5, 5],
            "config_type": [3, 7, 7],
            "synonyms": [[], [], []],
        },
    ),
    Case(
        "an unknown setting of a group",
        "DescribeConfigs",
        4,
        lambda w: describe_configs(GROUP, w["unknown"], "foo"),
        E.NONE,
        {"configs": [[]]},
    ),
    Case(
        "client metrics alone",
        "ListConfigResources",
        0,
        lambda w: request("ListConfigResources"),
        E.NONE,
    ),
]

CASES = [
    *alters(GROUP, GROUPS),
    *alters(GROUP, OTHER_TYPES, kafka=E.NONE, why=NOT_SERVED),
    *alters(CLIENT_METRICS, METRICS),
    *NAMELESS,
    *REPLACED,
    *SHOWN,
]

"""The settings of single groups, and of client metrics subscriptions, under Kafka's own names.

Only those of group types that are served. What a group may set is bounded by settings of the broker.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.core.settings import INT_MAX, Setting, Type, table


class Bounded(NamedTuple):
    """The broker settings around a setting of a group: what holds for groups without one, and what a group may choose."""

    default: str
    least: str
    most: str


_SESSION, _HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_ASSIGNMENT = "consumer.assignment.interval.ms"

GROUP_SETTINGS: dict[str, Setting] = table(
    (
        Setting(
            _SESSION, Type.INT, 45000, "A member of the group that is silent for longer has left.", low=1
        ),
        Setting(
            _HEARTBEAT, Type.INT, 5000, "How often members of the group are asked for a heartbeat.", low=1
        ),
        Setting(_ASSIGNMENT, Type.INT, 0, "How soon after an assignment the next one may follow.", low=0),
    )
)

GROUP_BOUNDS: dict[str, Bounded] = {
    _SESSION: Bounded(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    _HEARTBEAT: Bounded(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    _ASSIGNMENT: Bounded(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
}
# The first must be greater than the second.
SESSION_AND_HEARTBEAT = (_SESSION, _HEARTBEAT)

CLIENT_METRICS_SETTINGS: dict[str, Setting] = table(
    (
        Setting("interval.ms", Type.INT, 300000, "How often clients are to push.", low=-INT_MAX - 1),
        Setting("match", Type.LIST, (), "Which clients are meant: name=pattern, each of which must match."),
        Setting("metrics", Type.LIST, (), "Prefixes of the metrics that are wanted; * is all."),
    )
)
METRICS_INTERVAL_BOUNDS = (100, 3_600_000)
# What a client is known by.
METRICS_MATCHES = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

"""The settings of groups and of client metrics subscriptions, under Kafka's names.

Only settings of supported group types. Broker settings bound the values of a group.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.core.settings import INT_MAX, Setting, Type, table


class Bounded(NamedTuple):
    """The broker settings for the default, minimum and maximum of a group setting."""

    default: str
    least: str
    most: str


_SESSION, _HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_ASSIGNMENT = "consumer.assignment.interval.ms"

GROUP_SETTINGS: dict[str, Setting] = table(
    (
        Setting(
            _SESSION,
            Type.INT,
            45000,
            "Time after which a silent member is removed from the group.",
            low=1,
        ),
        Setting(_HEARTBEAT, Type.INT, 5000, "Heartbeat interval of the members.", low=1),
        Setting(_ASSIGNMENT, Type.INT, 0, "Minimum time between two assignments.", low=0),
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
        Setting(
            "interval.ms",
            Type.INT,
            300000,
            "Interval at which clients should push.",
            low=-INT_MAX - 1,
        ),
        Setting(
            "match", Type.LIST, (), "Clients to select, as name=pattern; all patterns must match."
        ),
        Setting("metrics", Type.LIST, (), "Prefixes of the requested metrics; * is all."),
    )
)
METRICS_INTERVAL_BOUNDS = (100, 3_600_000)
# The attributes that a pattern may match.
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

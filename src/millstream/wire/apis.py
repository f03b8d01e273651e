"""The table of APIs: key, name, module, served versions, first flexible version.

Kept small on purpose: ApiVersions and dispatch need it at startup, while messages and handlers are
imported on first use. A test compares each row with the message declarations in ``wire/messages``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from millstream.wire.schema import Struct


class Pipelining(Enum):
    """The later requests of a connection that may pass a decided request whose response is pending.

    Clients rely on requests of a connection taking effect in the order sent. Kafka handles no
    request before the previous response is sent, and neither does this broker by default. A request
    that is answered at once never holds back others.
    """

    NONE = "none"
    # Produces may pass an appended produce that waits for its acknowledgement.
    SAME_API = "same API"
    # Any request may pass one that waits for others: a fetch for records, a member for its group.
    # Also between brokers, where a forwarded CreateTopics must not hold back the next one.
    ANY = "any"


class Api(NamedTuple):
    """An API. ``module`` names its file in ``wire/messages`` and in ``broker/handlers``."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int
    # If a setting enables the newest version: the newest version without it, and the setting.
    stable_max: int | None = None
    opened_by: str = ""
    # Executed by the controller, whichever broker receives it.
    forwarded: bool = False
    # Between brokers only: not offered to clients.
    internal: bool = False
    pipelining: Pipelining = Pipelining.NONE

    @property
    def newest(self) -> int:
        """The newest version served by default."""
        return self.max_version if self.stable_max is None else self.stable_max

    def newest_with(self, flag: Callable[[str], bool]) -> int:
        """Return the newest version under the settings of a broker."""
        return self.max_version if self.opened_by and flag(self.opened_by) else self.newest

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.newest

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def request_class(self) -> type[Struct]:
        return self._class("Request")

    def response_class(self) -> type[Struct]:
        return self._class("Response")

    def _class(self, suffix: str) -> type[Struct]:
        module = importlib.import_module(f"millstream.wire.messages.{self.module}")
        message: type[Struct] = getattr(module, self.name + suffix)
        return message


NEVER_FLEXIBLE = 32767
# The client software name of brokers in ApiVersions: they also get the internal APIs.
BROKER_SOFTWARE = "millstream-broker"

APIS: tuple[Api, ...] = (
    Api(0, "Produce", "produce", 0, 13, 9, pipelining=Pipelining.SAME_API),
    Api(1, "Fetch", "fetch", 0, 18, 12, pipelining=Pipelining.ANY),
    Api(2, "ListOffsets", "list_offsets", 0, 11, 6),
    Api(3, "Metadata", "metadata", 0, 13, 9),
    Api(8, "OffsetCommit", "offset_commit", 2, 10, 8),
    Api(9, "OffsetFetch", "offset_fetch", 1, 10, 6),
    Api(10, "FindCoordinator", "find_coordinator", 0, 6, 3),
    Api(11, "JoinGroup", "join_group", 0, 9, 6, pipelining=Pipelining.ANY),
    Api(12, "Heartbeat", "heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", "leave_group", 0, 5, 4),
    Api(14, "SyncGroup", "sync_group", 0, 5, 4, pipelining=Pipelining.ANY),
    Api(15, "DescribeGroups", "describe_groups", 0, 6, 5),
    Api(16, "ListGroups", "list_groups", 0, 5, 3),
    Api(18, "ApiVersions", "api_versions", 0, 5, 3),
    Api(19, "CreateTopics", "create_topics", 2, 7, 5, forwarded=True),
    Api(20, "DeleteTopics", "delete_topics", 1, 6, 4, forwarded=True),
    Api(21, "DeleteRecords", "delete_records", 0, 2, 2),
    Api(
        22, "InitProducerId", "init_producer_id", 0, 6, 2, 5, "transaction.two.phase.commit.enable"
    ),
    Api(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    Api(25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    Api(26, "EndTxn", "end_txn", 0, 5, 3),
    Api(27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 1, pipelining=Pipelining.ANY),
    Api(28, "TxnOffsetCommit", "txn_offset_commit", 0, 6, 3),
    Api(29, "DescribeAcls", "describe_acls", 1, 3, 2),
    Api(30, "CreateAcls", "create_acls", 1, 3, 2),
    Api(31, "DeleteAcls", "delete_acls", 1, 3, 2),
    Api(32, "DescribeConfigs", "describe_configs", 1, 4, 4),
    Api(33, "AlterConfigs", "alter_configs", 0, 2, 2, forwarded=True),
    Api(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2, 2),
    Api(35, "DescribeLogDirs", "describe_log_dirs", 1, 5, 2),
    Api(37, "CreatePartitions", "create_partitions", 0, 3, 2, forwarded=True),
    Api(42, "DeleteGroups", "delete_groups", 0, 3, 2),
    Api(43, "ElectLeaders", "elect_leaders", 0, 2, 2, forwarded=True),
    Api(44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1, forwarded=True),
    Api(
        45, "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1, 0, forwarded=True
    ),
    Api(46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0, forwarded=True),
    Api(47, "OffsetDelete", "offset_delete", 0, 0, NEVER_FLEXIBLE),
    Api(48, "DescribeClientQuotas", "describe_client_quotas", 0, 1, 1),
    Api(49, "AlterClientQuotas", "alter_client_quotas", 0, 1, 1),
    Api(56, "AlterPartition", "alter_partition", 2, 3, 0, internal=True, pipelining=Pipelining.ANY),
    Api(57, "UpdateFeatures", "update_features", 0, 2, 0, forwarded=True),
    Api(58, "Envelope", "envelope", 0, 0, 0, internal=True, pipelining=Pipelining.ANY),
    Api(60, "DescribeCluster", "describe_cluster", 0, 2, 0),
    Api(61, "DescribeProducers", "describe_producers", 0, 0, 0),
    Api(64, "UnregisterBroker", "unregister_broker", 0, 0, 0, forwarded=True),
    Api(65, "DescribeTransactions", "describe_transactions", 0, 0, 0),
    Api(66, "ListTransactions", "list_transactions", 0, 2, 0),
    Api(
        67,
        "AllocateProducerIds",
        "allocate_producer_ids",
        0,
        0,
        0,
        internal=True,
        pipelining=Pipelining.ANY,
    ),
    Api(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 0),
    Api(69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0),
    Api(71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions", 0, 0, 0),
    Api(72, "PushTelemetry", "push_telemetry", 0, 0, 0),
    Api(74, "ListConfigResources", "list_config_resources", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0),
    Api(
        30000,
        "ControllerFeed",
        "controller_feed",
        0,
        0,
        0,
        internal=True,
        pipelining=Pipelining.ANY,
    ),
)

BY_KEY: dict[int, Api] = {api.key: api for api in APIS}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS}


def api_of(request: Struct) -> Api:
    """Return the API of a request."""
    return BY_NAME[type(request).__name__.removesuffix("Request")]

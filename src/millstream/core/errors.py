"""Kafka's error codes, one row each: code, whether a client may retry, and the meaning.

Responses carry an ``ErrorCode``. Broker code raises ``ApiError`` to end a request, or one partition
of it, with such a code and a sentence for the user.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """The code of a response; equal to the number on the wire."""

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member with this code; an unknown code is a server error."""
        member = cls._value2member_map_.get(code, cls.UNKNOWN_SERVER_ERROR)
        assert isinstance(member, cls)
        return member

    UNKNOWN_SERVER_ERROR = (
        -1,
        False,
        "the broker failed while processing the request; its log has the cause",
    )
    NONE = 0, False, ""
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is outside the range kept for the partition"
    CORRUPT_MESSAGE = 2, True, "the checksum or the structure of the records is wrong"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "this broker does not host this topic or partition"
    INVALID_FETCH_SIZE = 4, False, "the fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = (
        6,
        True,
        "this broker is not the leader (or a replica) of the partition",
    )
    REQUEST_TIMED_OUT = 7, True, "the request timed out on the broker"
    BROKER_NOT_AVAILABLE = 8, False, "broker not available"
    REPLICA_NOT_AVAILABLE = 9, True, "replica not available"
    MESSAGE_TOO_LARGE = 10, False, "the record batch is larger than max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, False, "stale controller epoch"
    OFFSET_METADATA_TOO_LARGE = 12, False, "offset metadata too large"
    NETWORK_EXCEPTION = 13, True, "network exception"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "no coordinator is available yet"
    NOT_COORDINATOR = 16, True, "this broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic name is invalid, or the topic is reserved"
    RECORD_LIST_TOO_LARGE = 18, False, "the record batch is larger than the segment size"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer in-sync replicas than min.insync.replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "the records were appended, but fewer replicas than min.insync.replicas have them",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, False, "illegal generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "inconsistent group protocol"
    INVALID_GROUP_ID = 24, False, "invalid group id"
    UNKNOWN_MEMBER_ID = 25, False, "unknown member id"
    INVALID_SESSION_TIMEOUT = 26, False, "invalid session timeout"
    REBALANCE_IN_PROGRESS = 27, False, "rebalance in progress"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "invalid commit offset size"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not allowed on this cluster"
    INVALID_TIMESTAMP = 32, False, "a record timestamp is outside the bounds of the topic"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "unsupported sasl mechanism"
    ILLEGAL_SASL_STATE = 34, False, "illegal sasl state"
    UNSUPPORTED_VERSION = 35, False, "this version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name already exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is invalid"
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "the replication factor is below 1 or above the number of live brokers",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is invalid"
    INVALID_CONFIG = 40, False, "a setting is unknown or its value is invalid"
    NOT_CONTROLLER = 41, True, "not controller"
    INVALID_REQUEST = 42, False, "the request is malformed or contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        False,
        "the message format of this version cannot carry the records",
    )
    POLICY_VIOLATION = 44, False, "the request violates a policy"
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "the sequence number does not follow this producer's last one",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the sequence number was seen before"
    INVALID_PRODUCER_EPOCH = 47, False, "a newer producer with the same id has taken over"
    INVALID_TXN_STATE = 48, False, "the transaction is in the wrong state for this request"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "invalid producer id mapping"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "invalid transaction timeout"
    CONCURRENT_TRANSACTIONS = (
        51,
        True,
        "the previous transaction of this producer is still being completed",
    )
    TRANSACTION_COORDINATOR_FENCED = 52, False, "transaction coordinator fenced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "transactional id authorization failed"
    SECURITY_DISABLED = 54, False, "security disabled"
    OPERATION_NOT_ATTEMPTED = 55, False, "operation not attempted"
    KAFKA_STORAGE_ERROR = 56, True, "the disk failed under the partition, or is full"
    LOG_DIR_NOT_FOUND = 57, False, "no such log directory on this broker"
    SASL_AUTHENTICATION_FAILED = 58, False, "sasl authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "the broker does not know this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "reassignment in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation token auth disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "delegation token not found"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "delegation token owner mismatch"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "delegation token request not allowed"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "delegation token authorization failed"
    DELEGATION_TOKEN_EXPIRED = 66, False, "delegation token expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "invalid principal type"
    NON_EMPTY_GROUP = 68, False, "non empty group"
    GROUP_ID_NOT_FOUND = 69, False, "group id not found"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "the fetch session has been evicted or never existed"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session epoch is not the expected one"
    LISTENER_NOT_FOUND = 72, True, "the leader has no listener of this name"
    TOPIC_DELETION_DISABLED = 73, False, "delete.topic.enable is false"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch of the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch of the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "the client cannot read this compression codec, or the topic may not hold it",
    )
    STALE_BROKER_EPOCH = 77, False, "stale broker epoch"
    OFFSET_NOT_AVAILABLE = 78, True, "the leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, False, "member id required"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "preferred leader not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "group max size reached"
    FENCED_INSTANCE_ID = 82, False, "fenced instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "eligible leaders not available"
    ELECTION_NOT_NEEDED = 84, True, "election not needed"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "group subscribed to topic"
    INVALID_RECORD = 87, False, "the broker rejected a record"
    UNSTABLE_OFFSET_COMMIT = 88, True, "unstable offset commit"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "throttling quota exceeded"
    PRODUCER_FENCED = 90, False, "a newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, False, "the resource does not exist"
    DUPLICATE_RESOURCE = 92, False, "the resource is named twice in the request"
    UNACCEPTABLE_CREDENTIAL = 93, False, "unacceptable credential"
    INCONSISTENT_VOTER_SET = 94, False, "inconsistent voter set"
    INVALID_UPDATE_VERSION = 95, False, "the version of the update is invalid"
    FEATURE_UPDATE_FAILED = 96, False, "the feature cannot be set to this level"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "principal deserialization failure"
    SNAPSHOT_NOT_FOUND = 98, False, "snapshot not found"
    POSITION_OUT_OF_RANGE = 99, False, "position out of range"
    UNKNOWN_TOPIC_ID = 100, True, "this broker does not host a topic with this id"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "duplicate broker registration"
    BROKER_ID_NOT_REGISTERED = 102, False, "broker id not registered"
    INCONSISTENT_TOPIC_ID = (
        103,
        True,
        "the topic id in the log directory differs from that of the topic",
    )
    INCONSISTENT_CLUSTER_ID = 104, False, "the cluster id differs from that of the broker"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "transactional id not found"
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        True,
        "the fetch session mixes requests with and without topic ids",
    )
    INELIGIBLE_REPLICA = 107, False, "ineligible replica"
    NEW_LEADER_ELECTED = 108, False, "new leader elected"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "offset moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "fenced member epoch"
    UNRELEASED_INSTANCE_ID = 111, False, "unreleased instance id"
    UNSUPPORTED_ASSIGNOR = 112, False, "unsupported assignor"
    STALE_MEMBER_EPOCH = 113, False, "stale member epoch"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request was sent to the wrong type of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this type of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, False, "unknown controller id"
    UNKNOWN_SUBSCRIPTION_ID = (
        117,
        False,
        "the telemetry subscription is out of date; request it again",
    )
    TELEMETRY_TOO_LARGE = 118, False, "the pushed metrics are too large"
    INVALID_REGISTRATION = 119, False, "invalid registration"
    TRANSACTION_ABORTABLE = 120, False, "transaction abortable"
    INVALID_RECORD_STATE = 121, False, "invalid record state"
    SHARE_SESSION_NOT_FOUND = 122, True, "share session not found"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "invalid share session epoch"
    FENCED_STATE_EPOCH = 124, False, "fenced state epoch"
    INVALID_VOTER_KEY = 125, False, "invalid voter key"
    DUPLICATE_VOTER = 126, False, "duplicate voter"
    VOTER_NOT_FOUND = 127, False, "voter not found"
    INVALID_REGULAR_EXPRESSION = 128, False, "invalid regular expression"
    REBOOTSTRAP_REQUIRED = 129, False, "rebootstrap required"
    STREAMS_INVALID_TOPOLOGY = 130, False, "streams invalid topology"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "streams invalid topology epoch"
    STREAMS_TOPOLOGY_FENCED = 132, False, "streams topology fenced"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "share session limit reached"
    GROUP_DELETION_FAILED = 134, False, "group deletion failed"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (
        135,
        False,
        "streams topology description update failed",
    )
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "controller id not registered"


# Messages repeat client input, and older versions cannot carry more than 32 kB of text.
_LONGEST_MESSAGE = 2000


class ApiError(Exception):
    """End a request, or one partition or resource of it, with an error code."""

    # (index of the record in its batch, reason), if single records were rejected
    record_errors: tuple[tuple[int, str], ...] = ()
    # Log start offset of the partition that rejected a batch; -1 if the response has none.
    log_start_offset: int = -1

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        text = message or code.message
        super().__init__(text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "...")
        self.code = code

    def __reduce__(self) -> tuple[type[ApiError], tuple[ErrorCode, str]]:
        """Keep the code when the error is sent from a worker process."""
        return type(self), (self.code, self.message)

    @property
    def message(self) -> str:
        return str(self.args[0])

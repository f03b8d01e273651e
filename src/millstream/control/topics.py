"""Plans for topics: the writes that create, expand or delete a topic, or the error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.control import znodes
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.placement import check_assignment, initial_isr, place
from millstream.control.znodes import PartitionState
from millstream.core.config import parse_topic_overrides
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.settings import SettingError

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 249
# Maximum number of partitions that one request may create or add, over all of its topics, as in
# Apache Kafka.
MAX_CREATED = 10_000
# Far more settings than a topic has. More than these are not parsed.
_MAX_CONFIGS = 10_000

NodeWrites = list[tuple[str, bytes | None]]
Racks = Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, as requested; -1 means the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The writes that create a topic, and the topic and settings for the response."""

    topic: TopicImage
    configs: dict[str, str]
    writes: NodeWrites


def name_problem(name: str) -> str | None:
    """Return why a topic name is invalid, in the words of Kafka's clients, or None."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME}"
    if not _NAME_CHARACTERS.issuperset(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def check_total(topics: Sequence[NewTopic], default_partitions: int) -> None:
    """Raise ApiError if one request may not create all of these topics.

    The error is then the response for each of them.
    """
    counts = (
        len(new.assignment)
        or (default_partitions if new.partitions == -1 else max(new.partitions, 0))
        for new in topics
    )
    if sum(counts) > MAX_CREATED:
        raise _too_many()


def _too_many() -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"Excessively large number of partitions per request: at most {MAX_CREATED:,} are created at once.",
    )


def plan_create(
    image: ClusterImage,
    new: NewTopic,
    *,
    topics_by_metric_name: Mapping[str, str],
    brokers: Sequence[int],
    default_partitions: int,
    default_replication_factor: int,
    topic_id: bytes,
    racks: Racks | None = None,
    down: Collection[int] = (),
    controller_epoch: int,
) -> TopicPlan:
    """Return the writes that create a topic; raise ApiError as Kafka's controller would.

    Of the registered ``brokers``, some may be ``down``. They get replicas, which are not in sync.
    ``topics_by_metric_name`` are the existing and planned topics, by ``metric_name``.
    """
    _check_new_name(image, new.name, topics_by_metric_name)
    configs = _check_configs(new.configs)
    replicas = _replicas(new, brokers, default_partitions, default_replication_factor, racks, down)
    topic = TopicImage(
        new.name, topic_id, replicas, _first_states(replicas, down, controller_epoch)
    )
    # Settings come first: they are needed to create the logs.
    writes = _config_writes(new.name, configs)
    if not configs and new.name in image.topic_configs:
        # A controller crashed after it wrote these settings and before it wrote their topic. They
        # do not belong to this topic.
        writes = [(znodes.topic_config_path(new.name), None)]
    return TopicPlan(topic, configs, writes + _topic_writes(topic, 0))


def _first_states(
    replicas: Mapping[int, tuple[int, ...]], down: Collection[int], controller_epoch: int
) -> dict[int, PartitionState]:
    """Return the states of new partitions; raise ApiError if one has no live broker."""
    states: dict[int, PartitionState] = {}
    for index, assigned in replicas.items():
        isr = initial_isr(assigned, down)
        if not isr:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {index} are "
                "fenced or in controlled shutdown.",
            )
        states[index] = PartitionState(isr[0], 0, isr, controller_epoch)
    return states


def check_name(name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _check_new_name(
    image: ClusterImage, name: str, topics_by_metric_name: Mapping[str, str]
) -> None:
    check_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = topics_by_metric_name.get(metric_name(name))
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )


def metric_name(name: str) -> str:
    """Return a topic's name in metrics, where a period becomes an underscore.

    Kafka rejects a topic whose name in metrics is that of another topic.
    """
    return name.replace(".", "_")


def _check_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    if len(configs) > _MAX_CONFIGS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"A topic has fewer than {_MAX_CONFIGS:,} settings."
        )
    texts = dict(configs)
    try:
        parse_topic_overrides(texts)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return {name: text for name, text in texts.items() if text is not None}


def _replicas(
    new: NewTopic,
    brokers: Sequence[int],
    default_partitions: int,
    default_replication_factor: int,
    racks: Racks | None,
    down: Collection[int],
) -> dict[int, tuple[int, ...]]:
    if new.assignment:
        return _manual_assignment(new, brokers)
    if new.partitions < -1 or new.partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if new.replication_factor < -1 or new.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = default_partitions if new.partitions == -1 else new.partitions
    factor = default_replication_factor if new.replication_factor == -1 else new.replication_factor
    return place(brokers, 0, count, factor, racks, down)


def _manual_assignment(new: NewTopic, brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    if new.partitions != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    if new.replication_factor != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    replicas: dict[int, tuple[int, ...]] = {}
    for index, brokers_of_partition in new.assignment:
        if index in replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        replicas[index] = check_assignment(brokers_of_partition, brokers)
    if set(replicas) != set(range(len(replicas))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    _check_same_factor(replicas.values(), len(replicas[0]))
    return dict(sorted(replicas.items()))


def topic_write(topic: TopicImage) -> tuple[str, bytes]:
    """Return the write of a topic's node: its id, replicas and reassignments."""
    data = znodes.encode_topic(topic.topic_id, topic.replicas, topic.reassigning.items())
    return znodes.topic_path(topic.name), data


def state_write(topic: str, index: int, state: PartitionState) -> tuple[str, bytes]:
    return znodes.partition_state_path(topic, index), znodes.encode_partition_state(state)


def _topic_writes(topic: TopicImage, first: int) -> NodeWrites:
    """Return the writes of a topic's node and of its partition states from ``first`` on."""
    writes: NodeWrites = [topic_write(topic)]
    for index in range(first, topic.partition_count):
        writes.append(state_write(topic.name, index, topic.states[index]))
    return writes


def _config_writes(name: str, configs: Mapping[str, str]) -> NodeWrites:
    return [(znodes.topic_config_path(name), znodes.encode_config(configs))] if configs else []


def plan_adopt(
    name: str,
    topic_id: bytes,
    epochs: Sequence[int],
    broker: int,
    configs: Mapping[str, str],
    *,
    controller_epoch: int,
) -> NodeWrites:
    """Return the writes that add a topic found on disk, with its id and leader epochs there."""
    replicas: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(epochs)), (broker,))
    topic = TopicImage(name, topic_id, replicas)
    topic.states = {
        index: PartitionState(broker, epochs[index], (broker,), controller_epoch)
        for index in replicas
    }
    return _config_writes(name, configs) + _topic_writes(topic, 0)


def plan_grow(
    image: ClusterImage,
    name: str,
    count: int,
    assignments: Sequence[tuple[int, ...]] | None,
    brokers: Sequence[int],
    racks: Racks | None = None,
    *,
    down: Collection[int] = (),
    left: int = MAX_CREATED,
    controller_epoch: int,
) -> NodeWrites:
    """Return the writes that raise a topic's partition count; raise ApiError if it is invalid.

    ``brokers`` and ``down`` are as for ``plan_create``. The request may add ``left`` more
    partitions.
    """
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = topic.partition_count
    if topic.internal:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The partition count of {name} determines the coordinator of each name; with more partitions, "
            "existing entries would not be found.",
        )
    if count == current:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if count < current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {count} would not be an increase.",
        )
    if count - current > left:
        raise _too_many()
    added = _added_replicas(topic, count, assignments, brokers, racks, down)
    states = topic.states | _first_states(added, down, controller_epoch)
    expanded = TopicImage(name, topic.topic_id, topic.replicas | added, states, topic.reassigning)
    return _topic_writes(expanded, current)


def _added_replicas(
    topic: TopicImage,
    count: int,
    assignments: Sequence[tuple[int, ...]] | None,
    brokers: Sequence[int],
    racks: Racks | None,
    down: Collection[int],
) -> dict[int, tuple[int, ...]]:
    current, factor = topic.partition_count, len(topic.assignment(0).target)
    if assignments is None:
        return place(brokers, current, count - current, factor, racks, down)
    if len(assignments) != count - current:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {count - current} additional partition(s), but only {len(assignments)} "
            "assignment(s) were specified.",
        )
    added = {
        current + i: check_assignment(replicas, brokers) for i, replicas in enumerate(assignments)
    }
    _check_same_factor(added.values(), factor)
    return added


def _check_same_factor(assignments: Iterable[Sequence[int]], factor: int) -> None:
    for replicas in assignments:
        if len(replicas) != factor:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
                f"is not consistent with previous partitions, which have {factor} replica(s).",
            )


def deletion_record(image: ClusterImage, name: str, behind: Collection[int]) -> tuple[str, bytes]:
    """Return the write that lists the deleted topic ids and the brokers with directories of them.

    Brokers that are ``behind`` may not know yet that their replica was reassigned.
    """
    topic = image.topics[name]
    ids = dict.fromkeys([*image.being_deleted.get(name, ()), topic.topic_id])
    brokers = {node for replicas in topic.replicas.values() for node in replicas}
    brokers |= image.deleted_from.get(name, frozenset()) | set(behind)
    return znodes.deleted_topic_path(name), znodes.encode_deleted_topic(list(ids), brokers)


def plan_delete(image: ClusterImage, name: str, behind: Collection[int] = ()) -> NodeWrites:
    """Return the writes that delete a topic; its id is kept until its directories are deleted."""
    return [
        deletion_record(image, name, behind),
        (znodes.topic_path(name), None),
        (znodes.topic_config_path(name), None),
    ]

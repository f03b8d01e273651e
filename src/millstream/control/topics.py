"""Plans for topics: what creating, growing or deleting one would write, or the error that says why not."""

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
# Maximum number of partitions that one request may create or add, over all of its topics, as in Apache Kafka.
MAX_CREATED = 10_000
# Far more settings than a topic has: so many are not even looked at.
_MOST_CONFIGS = 10_000

NodeWrites = list[tuple[str, bytes | None]]
Racks = Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created, as the request has it; -1 leaves a number to the broker."""

    name: str
    partitions: int
    replication_factor: int
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What will be written, and what the answer tells."""

    topic: TopicImage
    configs: dict[str, str]
    writes: NodeWrites


def name_problem(name: str) -> str | None:
    """What is wrong with a topic name, in the words of Kafka's clients."""
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
    """Whether one request may create all of these; raises ApiError, which is then the answer to each of them."""
    counts = (
        len(new.assignment) or (default_partitions if new.partitions == -1 else max(new.partitions, 0))
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
    flat: Mapping[str, str],
    brokers: Sequence[int],
    default_partitions: int,
    default_replication_factor: int,
    topic_id: bytes,
    racks: Racks | None = None,
    away: Collection[int] = (),
    controller_epoch: int,
) -> TopicPlan:
    """The writes that create a topic; raises ApiError as Kafka's controller would. Of the registered ``brokers``, some may be
    ``away``: they get replicas, which are not in sync yet.

    ``flat``: the topics that there are or will be, by ``flat_name``.
    """
    _check_new_name(image, new.name, flat)
    configs = _check_configs(new.configs)
    replicas = _replicas(new, brokers, default_partitions, default_replication_factor, racks, away)
    topic = TopicImage(new.name, topic_id, replicas, _first_states(replicas, away, controller_epoch))
    # Settings first: whoever makes the logs needs them.
    writes = _config_writes(new.name, configs)
    if not configs and new.name in image.topic_configs:
        # Left by a controller that fell between the settings and the topic: they are not this one's.
        writes = [(znodes.topic_config_path(new.name), None)]
    return TopicPlan(topic, configs, writes + _topic_writes(topic, 0))


def _first_states(
    replicas: Mapping[int, tuple[int, ...]], away: Collection[int], controller_epoch: int
) -> dict[int, PartitionState]:
    """Return the states of new partitions; raise ApiError where no replica is on a live broker."""
    states: dict[int, PartitionState] = {}
    for index, assigned in replicas.items():
        isr = initial_isr(assigned, away)
        if not isr:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown.",
            )
        states[index] = PartitionState(isr[0], 0, isr, controller_epoch)
    return states


def check_name(name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _check_new_name(image: ClusterImage, name: str, flat: Mapping[str, str]) -> None:
    check_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = flat.get(flat_name(name))
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def flat_name(name: str) -> str:
    """A topic's name in metrics, which cannot tell a period from an underscore: Kafka refuses two topics with one."""
    return name.replace(".", "_")


def _check_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    if len(configs) > _MOST_CONFIGS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"A topic has fewer than {_MOST_CONFIGS:,} settings.")
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
    away: Collection[int],
) -> dict[int, tuple[int, ...]]:
    if new.assignment:
        return _given_assignment(new, brokers)
    if new.partitions < -1 or new.partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if new.replication_factor < -1 or new.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = default_partitions if new.partitions == -1 else new.partitions
    factor = default_replication_factor if new.replication_factor == -1 else new.replication_factor
    return place(brokers, 0, count, factor, racks, away)


def _given_assignment(new: NewTopic, brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
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
    """The topic's own node: id and replicas, also those on their way."""
    data = znodes.encode_topic(topic.topic_id, topic.replicas, topic.moving.items())
    return znodes.topic_path(topic.name), data


def state_write(topic: str, index: int, state: PartitionState) -> tuple[str, bytes]:
    return znodes.partition_state_path(topic, index), znodes.encode_partition_state(state)


def _topic_writes(topic: TopicImage, first: int) -> NodeWrites:
    """The topic's node, and the state nodes of its partitions from ``first`` on."""
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
    """Takes in a topic that was found on disk, with the id and the leader epochs it has there."""
    replicas: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(epochs)), (broker,))
    topic = TopicImage(name, topic_id, replicas)
    topic.states = {
        index: PartitionState(broker, epochs[index], (broker,), controller_epoch) for index in replicas
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
    away: Collection[int] = (),
    left: int = MAX_CREATED,
    controller_epoch: int,
) -> NodeWrites:
    """The writes that raise a topic's partition count; ``brokers`` and ``away`` as for plan_create. The request may add
    ``left`` more partitions."""
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = topic.partition_count
    if topic.internal:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The partitions of {name} decide which coordinator a name belongs to; with more of them, what is there would not be "
            "found any more.",
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
    added = _added_replicas(topic, count, assignments, brokers, racks, away)
    states = topic.states | _first_states(added, away, controller_epoch)
    grown = TopicImage(name, topic.topic_id, topic.replicas | added, states, topic.moving)
    return _topic_writes(grown, current)


def _added_replicas(
    topic: TopicImage,
    count: int,
    assignments: Sequence[tuple[int, ...]] | None,
    brokers: Sequence[int],
    racks: Racks | None,
    away: Collection[int],
) -> dict[int, tuple[int, ...]]:
    current, factor = topic.partition_count, len(topic.assignment(0).target)
    if assignments is None:
        return place(brokers, current, count - current, factor, racks, away)
    if len(assignments) != count - current:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {count - current} additional partition(s), but only {len(assignments)} "
            "assignment(s) were specified.",
        )
    added = {current + i: check_assignment(replicas, brokers) for i, replicas in enumerate(assignments)}
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


def deletion_note(image: ClusterImage, name: str, behind: Collection[int]) -> tuple[str, bytes]:
    """Which incarnations are deleted, and where they have directories. Brokers that are ``behind`` may not know yet that theirs was moved away."""
    topic = image.topics[name]
    ids = dict.fromkeys([*image.being_deleted.get(name, ()), topic.topic_id])
    brokers = {node for replicas in topic.replicas.values() for node in replicas}
    brokers |= image.deleted_from.get(name, frozenset()) | set(behind)
    return znodes.deleted_topic_path(name), znodes.encode_deleted_topic(list(ids), brokers)


def plan_delete(image: ClusterImage, name: str, behind: Collection[int] = ()) -> NodeWrites:
    """Forget the topic, but remember the incarnation until its directories are gone."""
    return [
        deletion_note(image, name, behind),
        (znodes.topic_path(name), None),
        (znodes.topic_config_path(name), None),
    ]

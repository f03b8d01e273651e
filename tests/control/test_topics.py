"""Plans for topics without a broker: the writes, or the error."""

from __future__ import annotations

import pytest

from millstream.control import znodes
from millstream.control.image import Change, ClusterImage
from millstream.control.placement import check_assignment, place
from millstream.control.topics import (
    MAX_CREATED,
    NewTopic,
    TopicPlan,
    check_total,
    metric_name,
    name_problem,
    plan_adopt,
    plan_create,
    plan_delete,
    plan_grow,
)
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode

ID = bytes(range(16))

OTHER_ID = bytes(range(16, 32))


def create(
    image: ClusterImage, new: NewTopic, *, brokers: tuple[int, ...] = (0,), topic_id: bytes = ID
) -> TopicPlan:
    plan = plan_create(
        image,
        new,
        topics_by_metric_name={metric_name(name): name for name in image.topics},
        brokers=brokers,
        default_partitions=3,
        default_replication_factor=1,
        topic_id=topic_id,
        controller_epoch=7,
    )
    for path, data in plan.writes:
        image.apply(path, data)
    return plan


def rejection(
    image: ClusterImage, new: NewTopic, *, brokers: tuple[int, ...] = (0,)
) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as error:
        create(image, new, brokers=brokers)
    return error.value.code, error.value.message


def test_created_topic_is_in_the_image_as_planned() -> None:
    image = ClusterImage()
    plan = create(image, NewTopic("t", 2, 2, configs=(("retention.ms", "5"),)), brokers=(4, 2, 9))
    assert image.topics["t"] == plan.topic
    assert image.topics["t"].replicas == {0: (2, 4), 1: (4, 9)}
    assert image.topics["t"].states == {
        0: PartitionState(2, 0, (2, 4), 7),
        1: PartitionState(4, 0, (4, 9), 7),
    }
    assert image.names_by_id == {ID: "t"}
    assert image.topic_configs == {"t": {"retention.ms": "5"}}


def test_minus_one_uses_the_defaults_of_the_broker() -> None:
    assert create(ClusterImage(), NewTopic("t", -1, -1)).topic.replicas == {
        0: (0,),
        1: (0,),
        2: (0,),
    }


def test_manual_assignment_is_used() -> None:
    new = NewTopic("t", -1, -1, assignment=((1, (2, 0)), (0, (0, 1))))
    assert create(ClusterImage(), new, brokers=(0, 1, 2)).topic.replicas == {0: (0, 1), 1: (2, 0)}


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a/../b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("there", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("with_dot", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -1, assignment=((0, (0,)),)), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, 1, assignment=((0, (0,)),)), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, -1, assignment=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, assignment=((0, (7,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, assignment=((0, (0, 0)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, assignment=((0, (0,)), (0, (0,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, assignment=((1, (0,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, assignment=((0, (0, 1)), (1, (0,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", 1, 1, configs=(("no.such", "1"),)), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, 1, configs=(("retention.ms", None),)), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, 1, configs=(("segment.bytes", "1"),)), ErrorCode.INVALID_CONFIG),
    ],
)  # fmt: skip
def test_invalid_topic_is_rejected_with_error_of_kafka(new: NewTopic, code: ErrorCode) -> None:
    image = ClusterImage()
    create(image, NewTopic("there", 1, 1))
    create(image, NewTopic("with.dot", 1, 1), topic_id=OTHER_ID)
    before = dict(image.topics)
    assert rejection(image, new)[0] is code
    assert image.topics == before


def test_error_for_a_very_long_name_fits_the_protocol() -> None:
    """Old versions write strings with a length of 16 bits."""
    _, message = rejection(ClusterImage(), NewTopic("x" * 32_767, 1, 1))
    assert len(message.encode()) <= 32_767


def test_valid_topic_names() -> None:
    assert [name_problem(name) for name in ("a", "A.b_c-9", "x" * 249, "...")] == [None] * 4


def test_added_partitions_keep_existing_states() -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 1, 1))
    image.apply(
        znodes.partition_state_path("t", 0),
        znodes.encode_partition_state(PartitionState(0, 5, (0,))),
    )
    for path, data in plan_grow(image, "t", 3, None, (0,), controller_epoch=7):
        image.apply(path, data)
    assert image.topics["t"].partition_count == 3
    states = image.topics["t"].states.values()
    assert [(state.leader_epoch, state.controller_epoch) for state in states] == [
        (5, 1),
        (0, 7),
        (0, 7),
    ]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("missing", 2, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", -5, None, ErrorCode.INVALID_PARTITIONS),
        ("t", MAX_CREATED + 3, None, ErrorCode.POLICY_VIOLATION),
        ("t", 4, [(0,)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(0, 1)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(9,)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_partition_count_is_rejected(
    name: str, count: int, assignments: list[tuple[int, ...]] | None, code: ErrorCode
) -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 2, 1), brokers=(0, 1))
    with pytest.raises(ApiError) as error:
        plan_grow(image, name, count, assignments, (0, 1), controller_epoch=7)
    assert error.value.code is code


def test_deleted_topic_id_is_kept_until_its_directories_are_deleted() -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 1, 1, configs=(("retention.ms", "5"),)))
    for path, data in plan_delete(image, "t"):
        image.apply(path, data)
    assert (image.topics, image.names_by_id, image.topic_configs) == ({}, {}, {})
    assert image.being_deleted == {"t": [ID]}
    # A topic with the same name is deleted before the first deletion has finished: both ids are
    # kept.
    create(image, NewTopic("t", 1, 1), topic_id=OTHER_ID)
    for path, data in plan_delete(image, "t"):
        image.apply(path, data)
    assert image.being_deleted == {"t": [ID, OTHER_ID]}
    image.apply(znodes.deleted_topic_path("t"), None)
    assert image.being_deleted == {}


def test_adopted_topic_keeps_its_id_and_epochs() -> None:
    image = ClusterImage()
    for path, data in plan_adopt(
        "t", ID, (3, 7), 1, {"cleanup.policy": "compact"}, controller_epoch=7
    ):
        image.apply(path, data)
    assert image.topic_configs == {"t": {"cleanup.policy": "compact"}}
    assert image.topics["t"].topic_id == ID
    assert image.topics["t"].states == {
        0: PartitionState(1, 3, (1,), 7),
        1: PartitionState(1, 7, (1,), 7),
    }


def test_replicas_are_spread_over_the_brokers() -> None:
    assert place((3, 1, 2), 0, 4, 2) == {0: (1, 2), 1: (2, 3), 2: (3, 1), 3: (1, 2)}
    assert place((1, 2, 3), 1, 1, 3) == {1: (2, 3, 1)}
    assert check_assignment([2, 1], (1, 2)) == (2, 1)


def test_unknown_nodes_are_ignored() -> None:
    image = ClusterImage()
    assert image.apply("/admin/reassign_partitions", b"{}") is None
    assert image.apply("/brokers/topics/gone/partitions/0/state", b"{}") == Change("gone")
    assert image == ClusterImage()


def test_settings_left_by_a_crashed_controller_are_dropped() -> None:
    image = ClusterImage()
    first = plan_create(
        image,
        NewTopic("t", 1, 1, configs=(("retention.ms", "5"),)),
        topics_by_metric_name={},
        brokers=(0,),
        default_partitions=1,
        default_replication_factor=1,
        topic_id=ID,
        controller_epoch=7,
    )
    # The controller crashed after the first write.
    image.apply(*first.writes[0])
    assert image.topic_configs == {"t": {"retention.ms": "5"}}
    create(image, NewTopic("t", 1, 1), topic_id=OTHER_ID)
    assert image.topic_configs == {} and image.topics["t"].topic_id == OTHER_ID


def test_partitions_per_request_are_limited_as_in_kafka() -> None:
    manual = NewTopic("manual", -1, -1, assignment=((0, (0,)), (1, (0,))))
    rest = MAX_CREATED - 3 - 2
    check_total(
        [manual, NewTopic("default", -1, 1), NewTopic("rest", rest, 1), NewTopic("bad", -7, 1)], 3
    )
    with pytest.raises(ApiError, match="Excessively large number of partitions") as error:
        check_total([manual, NewTopic("default", -1, 1), NewTopic("rest", rest + 1, 1)], 3)
    assert error.value.code is ErrorCode.POLICY_VIOLATION

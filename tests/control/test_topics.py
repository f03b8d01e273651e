"""Plans for topics, placement and features: what would be written, or the refusal, decided without a broker."""

from __future__ import annotations

import pytest

from millstream.control import znodes
from millstream.control.features import FEATURES, SAFE_DOWNGRADE, UPGRADE, updated_level
from millstream.control.image import Change, ClusterImage
from millstream.control.placement import check_assignment, place
from millstream.control.topics import (
    MAX_CREATED,
    NewTopic,
    TopicPlan,
    check_total,
    flat_name,
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
        flat={flat_name(name): name for name in image.topics},
        brokers=brokers,
        default_partitions=3,
        default_replication_factor=1,
        topic_id=topic_id,
        controller_epoch=7,
    )
    for path, data in plan.writes:
        image.apply(path, data)
    return plan


def refusal(image: ClusterImage, new: NewTopic, *, brokers: tuple[int, ...] = (0,)) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as error:
        create(image, new, brokers=brokers)
    return error.value.code, error.value.message


def test_a_new_topic_is_in_the_image_as_it_was_planned() -> None:
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


def test_minus_one_leaves_the_numbers_to_the_broker() -> None:
    assert create(ClusterImage(), NewTopic("t", -1, -1)).topic.replicas == {0: (0,), 1: (0,), 2: (0,)}


def test_an_assignment_that_is_given_is_taken() -> None:
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
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(new: NewTopic, code: ErrorCode) -> None:
    image = ClusterImage()
    create(image, NewTopic("there", 1, 1))
    create(image, NewTopic("with.dot", 1, 1), topic_id=OTHER_ID)
    before = dict(image.topics)
    assert refusal(image, new)[0] is code
    assert image.topics == before


def test_a_very_long_name_is_told_in_a_message_that_fits_the_protocol() -> None:
    """Old versions write strings with a length of 16 bits."""
    _, message = refusal(ClusterImage(), NewTopic("x" * 32_767, 1, 1))
    assert len(message.encode()) <= 32_767


def test_names_that_kafka_allows() -> None:
    assert [name_problem(name) for name in ("a", "A.b_c-9", "x" * 249, "...")] == [None] * 4


def test_growing_keeps_what_is_there() -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 1, 1))
    image.apply(
        znodes.partition_state_path("t", 0), znodes.encode_partition_state(PartitionState(0, 5, (0,)))
    )
    for path, data in plan_grow(image, "t", 3, None, (0,), controller_epoch=7):
        image.apply(path, data)
    assert image.topics["t"].partition_count == 3
    states = image.topics["t"].states.values()
    assert [(state.leader_epoch, state.controller_epoch) for state in states] == [(5, 1), (0, 7), (0, 7)]


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
def test_a_growth_that_cannot_be_is_refused(
    name: str, count: int, assignments: list[tuple[int, ...]] | None, code: ErrorCode
) -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 2, 1), brokers=(0, 1))
    with pytest.raises(ApiError) as error:
        plan_grow(image, name, count, assignments, (0, 1), controller_epoch=7)
    assert error.value.code is code


def test_a_deletion_is_remembered_by_id_until_its_directories_are_gone() -> None:
    image = ClusterImage()
    create(image, NewTopic("t", 1, 1, configs=(("retention.ms", "5"),)))
    for path, data in plan_delete(image, "t"):
        image.apply(path, data)
    assert (image.topics, image.names_by_id, image.topic_configs) == ({}, {}, {})
    assert image.being_deleted == {"t": [ID]}
    # The same name again, deleted again before the first deletion was finished: both are remembered.
    create(image, NewTopic("t", 1, 1), topic_id=OTHER_ID)
    for path, data in plan_delete(image, "t"):
        image.apply(path, data)
    assert image.being_deleted == {"t": [ID, OTHER_ID]}
    image.apply(znodes.deleted_topic_path("t"), None)
    assert image.being_deleted == {}


def test_a_topic_found_on_disk_keeps_its_id_and_epochs() -> None:
    image = ClusterImage()
    for path, data in plan_adopt("t", ID, (3, 7), 1, {"cleanup.policy": "compact"}, controller_epoch=7):
        image.apply(path, data)
    assert image.topic_configs == {"t": {"cleanup.policy": "compact"}}
    assert image.topics["t"].topic_id == ID
    assert image.topics["t"].states == {0: PartitionState(1, 3, (1,), 7), 1: PartitionState(1, 7, (1,), 7)}


def test_replicas_are_spread_over_the_brokers() -> None:
    assert place((3, 1, 2), 0, 4, 2) == {0: (1, 2), 1: (2, 3), 2: (3, 1), 3: (1, 2)}
    assert place((1, 2, 3), 1, 1, 3) == {1: (2, 3, 1)}
    assert check_assignment([2, 1], (1, 2)) == (2, 1)


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type"),
    [("no.such.feature", 1, UPGRADE), (FEATURES[0].name, 99, UPGRADE), (FEATURES[0].name, 0, 9)],
)
def test_a_feature_level_that_cannot_be_is_refused(name: str, level: int, upgrade_type: int) -> None:
    with pytest.raises(ApiError) as error:
        updated_level(name, 0, level, upgrade_type)
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_feature_may_stay_where_it_is() -> None:
    for feature in FEATURES:
        assert updated_level(feature.name, feature.initial, feature.initial, UPGRADE) == feature.initial
        assert updated_level(feature.name, feature.lowest, feature.lowest, SAFE_DOWNGRADE) == feature.lowest


def test_nodes_of_what_is_not_known_here_are_left_alone() -> None:
    image = ClusterImage()
    assert image.apply("/admin/reassign_partitions", b"{}") is None
    assert image.apply("/brokers/topics/gone/partitions/0/state", b"{}") == Change("gone")
    assert image == ClusterImage()


def test_settings_that_a_fallen_controller_left_are_not_those_of_the_next_topic() -> None:
    image = ClusterImage()
    first = plan_create(
        image,
        NewTopic("t", 1, 1, configs=(("retention.ms", "5"),)),
        flat={},
        brokers=(0,),
        default_partitions=1,
        default_replication_factor=1,
        topic_id=ID,
        controller_epoch=7,
    )
    image.apply(*first.writes[0])  # and no more
    assert image.topic_configs == {"t": {"retention.ms": "5"}}
    create(image, NewTopic("t", 1, 1), topic_id=OTHER_ID)
    assert image.topic_configs == {} and image.topics["t"].topic_id == OTHER_ID


def test_one_request_creates_no_more_partitions_than_in_kafka() -> None:
    given = NewTopic("given", -1, -1, assignment=((0, (0,)), (1, (0,))))
    rest = MAX_CREATED - 3 - 2
    check_total([given, NewTopic("default", -1, 1), NewTopic("rest", rest, 1), NewTopic("bad", -7, 1)], 3)
    with pytest.raises(ApiError, match="Excessively large number of partitions") as error:
        check_total([given, NewTopic("default", -1, 1), NewTopic("rest", rest + 1, 1)], 3)
    assert error.value.code is ErrorCode.POLICY_VIOLATION

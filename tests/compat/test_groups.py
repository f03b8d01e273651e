"""Groups as clients see them: who reads what, offsets and their commits, patterns, new partitions,
static members, restarts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from compat.group_readers import (
    READERS,
    AioKafka,
    Confluent,
    ConfluentCooperative,
    ConfluentNext,
    Read,
    Reader,
)
from compat.quick_settings import QUICK
from compat.raw_client import ask
from compat.raw_requests import create_partitions, errors
from compat.topics import create_topic
from millstream.local.broker import LocalBroker
from support.processes import complaints, wait_until

NewTopic = Callable[..., str]
every_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
COUNT = 40


def fill(
    bootstrap: str, topic: str, count: int = COUNT, partitions: int = 1, start: int = 0
) -> set[bytes]:
    """Numbered records, spread over the partitions; their values."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    values = [b"%d" % number for number in range(start, start + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0
    return set(values)


def values(found: list[Read]) -> list[bytes]:
    return sorted(one.value for one in found)


@pytest.fixture
def admin(quick_broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": quick_broker.bootstrap, "log_level": 0})


# ---- who reads what ----


@every_reader
def test_every_group_gets_everything_and_goes_on_where_it_committed(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader]
) -> None:
    topic = new_quick_topic(2)
    first = fill(quick_broker.bootstrap, topic, partitions=2)
    for group in (f"{topic}-a", f"{topic}-b"):
        with reader(quick_broker.bootstrap, group, [topic]) as member:
            assert values(member.read(COUNT)) == sorted(first)
            member.commit()
            assert [member.committed(topic, index) for index in (0, 1)] == [COUNT // 2] * 2
    second = fill(quick_broker.bootstrap, topic, partitions=2, start=COUNT)
    with reader(quick_broker.bootstrap, f"{topic}-a", [topic]) as member:
        assert values(member.read(COUNT)) == sorted(second)


@pytest.mark.parametrize("reader", [Confluent, ConfluentNext], ids=lambda reader: reader.__name__)
def test_eight_members_share_eight_partitions(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, admin: AdminClient, reader: type[Reader]
) -> None:
    topic = new_quick_topic(8)
    members = [reader(quick_broker.bootstrap, topic, [topic]) for _ in range(8)]
    fill(quick_broker.bootstrap, topic, 80, partitions=8)

    settled = threading.Event()

    def share() -> list[int]:
        return sorted(tp.partition for member in members for tp in member.consumer.assignment())  # type: ignore[attr-defined]

    def read_on(member: Any) -> None:
        """Until all have settled: one that stopped reading before would hold up the rebalances of
        the others.
        """
        deadline = time.monotonic() + 90
        while not settled.is_set():
            assert time.monotonic() < deadline, share()
            member.poll()
            if share() == list(range(8)) and all(
                len(m.consumer.assignment()) == 1 for m in members
            ):  # type: ignore[attr-defined]
                settled.set()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read_on, members))
        assert share() == list(range(8))
        [described] = admin.describe_consumer_groups([topic]).values()
        group = described.result(30)
        assert group.state is ConsumerGroupState.STABLE and len(group.members) == 8
        owned = [
            (tp.topic, tp.partition) for m in group.members for tp in m.assignment.topic_partitions
        ]
        assert sorted(owned) == [(topic, index) for index in range(8)]
        list(threads.map(lambda member: member.close(), members))


@every_reader
def test_a_pattern_finds_a_topic_that_is_made_later(
    quick_broker: LocalBroker, topic_name: str, reader: type[Reader]
) -> None:
    """And does not see one that it does not match."""
    bootstrap = quick_broker.bootstrap
    create_topic(bootstrap, f"{topic_name}-in-1")
    create_topic(bootstrap, f"{topic_name}-out")
    for name in ("in-1", "out"):
        fill(bootstrap, f"{topic_name}-{name}", 5)
    with reader(bootstrap, topic_name, pattern=f"{topic_name}-in-.*") as member:
        assert {one.topic for one in member.read(5)} == {f"{topic_name}-in-1"}
        member.commit()
        create_topic(bootstrap, f"{topic_name}-in-2")
        fill(bootstrap, f"{topic_name}-in-2", 5)
        assert {one.topic for one in member.read(5)} == {f"{topic_name}-in-2"}


@every_reader
def test_partitions_that_are_added_are_read(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader]
) -> None:
    topic = new_quick_topic(1)
    first = fill(quick_broker.bootstrap, topic, 5)
    with reader(quick_broker.bootstrap, topic, [topic]) as member:
        assert values(member.read(5)) == sorted(first)
        member.commit()
        assert not any(
            errors(ask(quick_broker.bootstrap, "CreatePartitions", 3, create_partitions(topic, 3)))
        )
        fill(quick_broker.bootstrap, topic, 6, partitions=3)
        # Records that arrive before the rebalance are not committed, and come again after it.
        found = member.read_until(
            lambda found: len({(one.partition, one.offset) for one in found}) >= 6
        )
        assert {one.partition for one in found} == {0, 1, 2}


@pytest.mark.parametrize("reader", [Confluent, ConfluentNext], ids=lambda reader: reader.__name__)
def test_a_static_member_comes_back_without_a_rebalance(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader]
) -> None:
    topic = new_quick_topic(2)
    with reader(quick_broker.bootstrap, topic, [topic], instance="a") as stays:
        goes = reader(quick_broker.bootstrap, topic, [topic], instance="b")
        share = settle(stays, goes)
        stays.rebalances = 0
        goes.close()
        with reader(quick_broker.bootstrap, topic, [topic], instance="b") as back:
            fill(quick_broker.bootstrap, topic, 10, partitions=2)
            assert {one.partition for one in back.read(5)} == share
            assert {one.partition for one in stays.read(5)} == {0, 1} - share
            assert stays.rebalances == 0


def settle(*members: Any) -> set[int]:
    """Polls until each of two members has one of two partitions; what the last one has."""

    def halves() -> bool:
        for member in members:
            member.poll()
        return all(len(member.consumer.assignment()) == 1 for member in members)

    wait_until(halves, "each member to have a partition")
    return {tp.partition for tp in members[-1].consumer.assignment()}


def test_a_second_instance_of_a_static_member_fences_the_first(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic = new_quick_topic()
    fill(quick_broker.bootstrap, topic, 5)
    first = Confluent(quick_broker.bootstrap, topic, [topic], instance="i")
    first.read(5)
    with Confluent(quick_broker.bootstrap, topic, [topic], instance="i") as second:
        second.read(5)
        with pytest.raises(KafkaException) as caught:
            first.commit()
        assert caught.value.args[0].name() in ("FENCED_INSTANCE_ID", "_FATAL", "_NO_OFFSET")
        first.close()


def test_a_group_moves_to_the_new_protocol_while_it_reads(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    """KIP-848: a member of the new protocol joins the old ones, and all go on."""
    topic = new_quick_topic(2)

    with ConfluentCooperative(quick_broker.bootstrap, topic, [topic]) as old:
        first = fill(quick_broker.bootstrap, topic, partitions=2)
        assert values(old.read(COUNT)) == sorted(first)
        old.commit()
        with ConfluentNext(quick_broker.bootstrap, topic, [topic]) as new:
            settle(old, new)
            fill(quick_broker.bootstrap, topic, partitions=2, start=COUNT)
            mine, other = old.read(COUNT // 2), new.read(COUNT // 2)
            assert values(mine + other) == sorted(b"%d" % n for n in range(COUNT, 2 * COUNT))


# ---- offsets ----


@every_reader
def test_offsets_are_committed_by_themselves(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader]
) -> None:
    topic = new_quick_topic()
    fill(quick_broker.bootstrap, topic)
    with reader(quick_broker.bootstrap, topic, [topic], auto_commit=True) as member:
        member.read(COUNT)

        def committed() -> bool:
            member.poll()
            return member.committed(topic, 0) == COUNT

        wait_until(committed, "the automatic commit")


def test_a_commit_that_is_not_waited_for(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic = new_quick_topic()
    fill(quick_broker.bootstrap, topic)
    with Confluent(quick_broker.bootstrap, topic, [topic]) as member:
        member.read(COUNT)
        member.consumer.commit(asynchronous=True)
        wait_until(lambda: member.committed(topic, 0) == COUNT, "the commit")


@every_reader
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_where_a_group_without_offsets_begins(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader], reset: str
) -> None:
    topic = new_quick_topic()
    fill(quick_broker.bootstrap, topic, 3)
    with reader(quick_broker.bootstrap, topic, [topic], reset=reset) as member:
        ticks = iter(range(10, 1_000_000))

        def met(found: list[Read]) -> bool:
            """Something new now and then: the latest is where the group is when it begins."""
            fill(quick_broker.bootstrap, topic, 1, start=next(ticks))
            return bool(found)

        found = member.read_until(met)
        assert (found[0].offset == 0) == (reset == "earliest")


def test_a_group_without_offsets_may_ask_for_an_error(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic = new_quick_topic()
    with Confluent(quick_broker.bootstrap, topic, [topic], reset="error") as member:
        found: list[str] = []

        def failed() -> bool:
            found.extend(m.error().name() for m in member.consumer.consume(10, 0.05) if m.error())
            return bool(found)

        wait_until(failed, "the error")
        assert found[0] == "_AUTO_OFFSET_RESET"


@every_reader
def test_offsets_of_a_group_that_nobody_knows(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, reader: type[Reader]
) -> None:
    topic = new_quick_topic()
    with reader(quick_broker.bootstrap, f"{topic}-unknown", [topic]) as member:
        assert member.committed(topic, 0) is None


def test_offsets_in_the_admin_api(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, admin: AdminClient
) -> None:
    """Read, set, and deleted with their group: confluent-kafka and kafka-python see the same."""
    topic = new_quick_topic(2)
    fill(quick_broker.bootstrap, topic, partitions=2)
    with Confluent(quick_broker.bootstrap, topic, [topic]) as member:
        member.read(COUNT)
        member.commit()
        assert offsets(admin, topic) == {(topic, 0): COUNT // 2, (topic, 1): COUNT // 2}
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 3)])
    [altered] = admin.alter_consumer_group_offsets([wanted]).values()
    assert [tp.error for tp in altered.result(30).topic_partitions] == [None]
    assert offsets(admin, topic) == {(topic, 0): 3, (topic, 1): COUNT // 2}
    python = KafkaAdminClient(bootstrap_servers=quick_broker.bootstrap)
    try:
        listed = python.list_group_offsets(topic)
        found = listed.get(topic, listed)
        assert {tp.partition: row.offset for tp, row in found.items()} == {0: 3, 1: COUNT // 2}
    finally:
        python.close()
    [deleted] = admin.delete_consumer_groups([topic]).values()
    deleted.result(30)
    assert topic not in {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert offsets(admin, topic) == {}


def offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    [told] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(tp.topic, tp.partition): tp.offset for tp in told.result(30).topic_partitions}


def test_groups_in_the_admin_api(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, admin: AdminClient
) -> None:
    topic = new_quick_topic()
    with (
        Confluent(quick_broker.bootstrap, f"{topic}-old", [topic]) as old,
        ConfluentNext(quick_broker.bootstrap, f"{topic}-new", [topic]) as new,
    ):
        fill(quick_broker.bootstrap, topic, 5)
        old.read(5), new.read(5)
        listed = {group.group_id: group for group in admin.list_consumer_groups().result(30).valid}
        kinds = {name: str(listed[f"{topic}-{name}"].type) for name in ("old", "new")}
        assert kinds == {"old": "ConsumerGroupType.CLASSIC", "new": "ConsumerGroupType.CONSUMER"}
        for name in ("old", "new"):
            [described] = admin.describe_consumer_groups([f"{topic}-{name}"]).values()
            group = described.result(30)
            assert group.state is ConsumerGroupState.STABLE
            assert [tp.topic for tp in group.members[0].assignment.topic_partitions] == [topic]
        with pytest.raises(KafkaException) as caught:
            admin.delete_consumer_groups([f"{topic}-old"])[f"{topic}-old"].result(30)
        assert caught.value.args[0].name() == "NON_EMPTY_GROUP"


# ---- the broker goes away ----


@pytest.fixture
def own_broker(broker: Callable[..., LocalBroker]) -> Iterator[LocalBroker]:
    made = broker(QUICK)
    yield made
    assert complaints(made.log_file.read_text(errors="replace")) == []


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_members_and_offsets_live_through_the_death_of_the_broker(
    own_broker: LocalBroker, kill: bool
) -> None:
    """The same members go on with the same partitions, and a group that was away
    finds its offsets.
    """
    topic = create_topic(own_broker.bootstrap, "survives", 2)
    first = fill(own_broker.bootstrap, topic, partitions=2)
    with Confluent(own_broker.bootstrap, "away", [topic]) as member:
        member.read(COUNT // 2)
        member.consumer.commit(
            offsets=[TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 9)], asynchronous=False
        )
    kinds = (
        Confluent,
        ConfluentNext,
        AioKafka,
    )  # kafka-python leaves sockets open that were refused
    living = [kind(own_broker.bootstrap, f"living-{kind.__name__}", [topic]) for kind in kinds]
    for member in living:
        assert values(member.read(COUNT)) == sorted(first)
        member.commit()
    own_broker.restart(kill=kill)
    second = fill(own_broker.bootstrap, topic, partitions=2, start=COUNT)
    for member in living:
        assert values(member.read(COUNT)) == sorted(second), member
        member.commit()
        assert [member.committed(topic, index) for index in (0, 1)] == [COUNT] * 2
    with Confluent(own_broker.bootstrap, "away", [topic]) as member:
        assert [member.committed(topic, index) for index in (0, 1)] == [7, 9]
        found = member.read(2 * COUNT - 16)
        assert {p: min(r.offset for r in found if r.partition == p) for p in (0, 1)} == {0: 7, 1: 9}
    for member in living:
        member.close()


def test_a_deleted_topic_takes_its_offsets_along(own_broker: LocalBroker) -> None:
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
    for name in ("kept", "gone"):
        create_topic(own_broker.bootstrap, name)
    consumer = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "g", "log_level": 0}
    )
    wanted = [TopicPartition("kept", 0, 1), TopicPartition("gone", 0, 2)]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()
    admin.delete_topics(["gone"])["gone"].result(30)
    wait_until(
        lambda: offsets(admin, "g") == {("kept", 0): 1}, "the offsets of the deleted topic to go"
    )
    own_broker.restart(kill=True)
    afterwards = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
    assert offsets(afterwards, "g") == {("kept", 0): 1}

"""Groups from outside (``admin.groups``) and from inside (``Consumer`` with a group)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from millstream.client import (
    Admin,
    ClientError,
    CommitFailed,
    Consumer,
    GroupActive,
    Producer,
    Record,
    UnknownGroup,
    UnknownTopic,
    produce,
)
from millstream.client.admin.group_assignment import assigned_partitions
from millstream.client.admin.group_reset import Change, Reset, execute, parse_duration, plan
from millstream.client.admin.groups import Member
from millstream.client.consuming.membership import default_group
from millstream.client.consuming.positions import Position
from millstream.client.consuming.topic_pattern import TopicSelection
from millstream.core.types import TopicPartition


@pytest.fixture
def admin(quick_broker) -> Iterator[Admin]:
    with Admin(quick_broker.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=2)
    return topic_name


def fill(admin: Admin, topic: str, counts: dict[int, int]) -> None:
    """Write ``count`` records to each partition, with timestamps 1000, 2000, ..."""
    with Producer(admin.connection.bootstrap) as producer:
        for partition, count in counts.items():
            for number in range(count):
                producer.send(
                    topic, str(number), partition=partition, timestamp_ms=1000 * (number + 1)
                )


def member(admin: Admin, topic: str | list[str], group: str, **more) -> Consumer:
    """A consumer that has joined the group."""
    consumer = Consumer(admin.connection.bootstrap, topic, group=group, **more)
    wait_until(lambda: consumer.poll(1) is not None and joined(consumer))
    return consumer


def joined(consumer: Consumer) -> bool:
    return consumer.membership is not None and consumer.membership.joined


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not become true")


# ---- through Admin ----


def test_lag_counts_to_the_end_and_lead_from_the_first_record(admin: Admin, topic: str):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(admin, topic, {0: 10, 1: 4})
    admin.offsets.delete_records({first: 3})
    admin.groups.alter(topic, {first: 5, second: 4})
    assert [
        (lag.partition, lag.current, lag.start, lag.end, lag.lag, lag.lead)
        for lag in admin.groups.lags(topic)
    ] == [
        (first, 5, 3, 10, 5, 2),
        (second, 4, 0, 4, 0, 4),
    ]


def test_member_is_described_with_its_assignment(admin: Admin, topic: str):
    with member(admin, topic, topic, options={"client.id": "reader"}):
        group = admin.groups.get(topic)
        assert (group.state, group.type, group.protocol_type, group.assignor) == (
            "Stable",
            "classic",
            "consumer",
            "cooperative-sticky",
        )
        (described,) = group.members
        assert (described.client_id, described.assignment) == (
            "reader",
            (TopicPartition(topic, 0), TopicPartition(topic, 1)),
        )
        assert [(lag.current, lag.lag, lag.member) for lag in admin.groups.lags(topic)] == [
            (None, None, described)
        ] * 2
    left = admin.groups.find(topic)
    assert left is None or (left.state, left.members) == ("Empty", ())


def test_groups_are_listed_and_filtered(admin: Admin, topic: str):
    admin.groups.alter(topic + "-idle", {TopicPartition(topic, 0): 0})
    with member(admin, topic, topic + "-busy"):
        mine = {
            group.id: (group.state, group.type)
            for group in admin.groups.list()
            if group.id.startswith(topic)
        }
        assert mine == {
            topic + "-busy": ("Stable", "classic"),
            topic + "-idle": ("Empty", "classic"),
        }
        stable = {group.id for group in admin.groups.list(states=["stable"])}
        assert topic + "-busy" in stable and topic + "-idle" not in stable
        assert topic + "-busy" not in {
            record.id for record in admin.groups.list(types=["consumer"])
        }
    with pytest.raises(ClientError, match="'Stabel' is not one of Empty"):
        admin.groups.list(states=["Stabel"])


def test_unknown_group_names_the_nearest(admin: Admin, topic: str):
    admin.groups.alter(topic, {TopicPartition(topic, 0): 0})
    for ask in (
        lambda: admin.groups.get(topic + "x"),
        lambda: admin.groups.delete(topic + "x"),
        lambda: admin.groups.delete_offsets(topic + "x", [TopicPartition(topic, 0)]),
        lambda: plan(admin, topic + "x", Reset("earliest")),
    ):
        with pytest.raises(UnknownGroup) as caught:
            ask()
        assert topic in caught.value.hint


def test_offsets_of_an_active_group_cannot_be_changed(admin: Admin, topic: str):
    partition = TopicPartition(topic, 0)
    with member(admin, topic, topic, options={"client.id": "reader"}):
        for act in (
            lambda: admin.groups.delete(topic),
            lambda: admin.groups.alter(topic, {partition: 0}),
            lambda: admin.groups.delete_offsets(topic, [partition]),
            lambda: plan(admin, topic, Reset("earliest"), [partition]),
        ):
            with pytest.raises(GroupActive, match="stop "):
                act()
        with pytest.raises(GroupActive, match=r"it is active \(1 member: reader at "):
            admin.groups.delete(topic)


def test_offsets_and_groups_are_deleted(admin: Admin, topic: str):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.groups.alter(topic, {first: 0, second: 0})
    admin.groups.delete_offsets(topic, [first])
    assert admin.groups.committed(topic) == {second: 0}
    with pytest.raises(UnknownGroup):
        admin.groups.delete(topic, topic + "-missing")
    admin.groups.delete(topic)
    assert admin.groups.find(topic) is None
    assert admin.groups.committed(topic) == {}


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset("earliest"), [(2, False), (0, False)]),
        (Reset("latest"), [(6, False), (3, False)]),
        (Reset("offset", 3), [(3, False), (3, False)]),
        (Reset("offset", 1), [(2, True), (1, False)]),
        (Reset("offset", 99), [(6, True), (3, True)]),
        (Reset("shift", -1), [(3, False), (2, False)]),
        (Reset("shift", 2), [(6, False), (3, True)]),
        (Reset("timestamp", 3500), [(3, False), (3, False)]),
        (Reset("timestamp", 9000), [(6, False), (3, False)]),
    ],
    ids=str,
)
def test_reset_is_limited_to_existing_offsets(admin: Admin, topic: str, reset: Reset, expected):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(admin, topic, {0: 6, 1: 3})
    admin.offsets.delete_records({first: 2})
    admin.groups.alter(topic, {first: 4, second: 3})
    changes = plan(admin, topic, reset)
    assert changes == [Change(first, 4, *expected[0]), Change(second, 3, *expected[1])]
    assert admin.groups.committed(topic) == {first: 4, second: 3}
    execute(admin, topic, changes)
    assert admin.groups.committed(topic) == {first: expected[0][0], second: expected[1][0]}


def test_reset_may_create_a_group_but_shift_needs_a_committed_offset(admin: Admin, topic: str):
    partition = TopicPartition(topic, 1)
    with pytest.raises(ClientError, match=f"has no committed offset to shift from in {topic}-1"):
        plan(admin, topic, Reset("shift", 1), [partition])
    execute(admin, topic, plan(admin, topic, Reset("earliest"), [partition]))
    assert admin.groups.committed(topic) == {partition: 0}


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("250ms", 250),
        ("PT1H", 3_600_000),
        ("P1DT12H", 129_600_000),
        ("PT0.5S", 500),
        ("pt5m", 300_000),
    ],
)
def test_durations_are_parsed_in_both_formats(text: str, duration_ms: int):
    assert parse_duration(text) == duration_ms
    assert Reset.by_duration(text, now_ms=10**12) == Reset("timestamp", 10**12 - duration_ms)


@pytest.mark.parametrize("text", ["", "soon", "P", "PT", "5", "1h x", "-1h"])
def test_invalid_duration_is_rejected(text: str):
    with pytest.raises(ClientError, match="is not a duration"):
        parse_duration(text)


def test_bytes_that_are_not_an_assignment_assign_nothing():
    for data in (b"", b"\x00", b"\x00\x00\xff\xff\xff\xff", b"\x00\x01\x00\x00\x00\x09"):
        assert assigned_partitions(data) == ()


# ---- as a member ----


def values(records: list[Record]) -> list[bytes | None]:
    return sorted(record.value or b"" for record in records)


def test_group_continues_where_it_has_committed(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, [("k", str(n)) for n in range(10)])
    with Consumer(bootstrap, topic, group=topic, until_end=True) as consumer:
        assert [record.value for record in consumer] == [b"%d" % n for n in range(10)]
    produce(bootstrap, topic, [("k", "more")])
    with Consumer(bootstrap, topic, group=topic, until_end=True, start="latest") as consumer:
        assert [record.value for batch in consumer.batches() for record in batch] == [b"more"]
    assert sum(admin.groups.committed(topic).values()) == 11
    assert {lag.lag for lag in admin.groups.lags(topic)} == {0}


def test_batch_is_committed_when_its_block_ends_without_exception(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, [("k", str(n)) for n in range(6)])
    seen: list[bytes | None] = []
    with (
        pytest.raises(ZeroDivisionError),
        Consumer(bootstrap, topic, group=topic, until_end=True) as consumer,
    ):
        for batch in consumer.batches(max_records=1):
            if len(seen) == 3:
                raise ZeroDivisionError
            seen += [record.value for record in batch]
    with Consumer(bootstrap, topic, group=topic, until_end=True) as consumer:
        seen += [record.value for record in consumer]
    assert seen == [b"%d" % n for n in range(6)]


def test_polled_records_are_committed_by_the_caller(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, [("k", str(n)) for n in range(4)])
    with Consumer(bootstrap, topic, group=topic, until_end=True) as consumer:
        polled: list[Record] = []
        while len(polled) < 4:
            polled += consumer.poll(2)
        assert admin.groups.committed(topic) == {}
        consumer.commit(wait=False)
        consumer.commit()
        wait_until(lambda: sum(admin.groups.committed(topic).values()) == 4)


def test_auto_commit_can_be_disabled(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, ["a", "b"])
    with Consumer(bootstrap, topic, group=topic, until_end=True, auto_commit=False) as consumer:
        assert values(list(consumer)) == [b"a", b"b"]
    assert admin.groups.committed(topic) == {}


def test_members_share_the_partitions_and_release_them(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    first = member(admin, topic, topic)
    second = Consumer(bootstrap, topic, group=topic)
    try:

        def shared() -> bool:
            first.poll(1, 0.05)
            second.poll(1, 0.05)
            return [
                len(member.membership.owned) for member in (first, second) if member.membership
            ] == [1, 1]

        wait_until(shared)
        second.close()
        wait_until(lambda: first.poll(1, 0.05) is not None and len(first.membership.owned) == 2)  # type: ignore[union-attr]
    finally:
        first.close()
        second.close()


def test_every_record_reaches_one_member(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    members = [Consumer(bootstrap, topic, group=topic) for _ in range(2)]
    try:
        # Poll all of them each time: a member that is not polled delays the rebalance of the
        # others.
        wait_until(
            lambda: [member.poll(1, 0.05) for member in members] != [] and all(map(joined, members))
        )
        produce(bootstrap, topic, [(str(n), str(n)) for n in range(200)])
        seen: list[Record] = []

        def all_seen() -> bool:
            for member in members:
                seen.extend(member.poll(500, 0.05))
                member.commit()
            return len({(record.partition, record.offset) for record in seen}) == 200

        wait_until(all_seen)
        assert len(values(seen)) >= 200
        # If a partition moved before its commit, its new owner reads it again and commits it.
        wait_until(lambda: all_seen() and sum(admin.groups.committed(topic).values()) == 200)
    finally:
        for member in members:
            member.close()


def test_uncommitted_offset_never_goes_back(admin: Admin, topic: str):
    """An end that was reached before new records arrived is reported together with them."""
    with member(admin, topic, topic) as consumer:
        assert consumer.membership is not None
        partition = TopicPartition(topic, 0)
        wait_until(
            lambda: consumer.poll(1, 0.05) is not None and partition in consumer.membership.owned
        )
        consumer.membership.advance(partition, 5)
        consumer.membership.advance(partition, 0)
        assert consumer.membership.uncommitted[partition] == 5


def test_partitions_assigned_after_the_last_poll_do_not_disturb_close(admin: Admin, topic: str):
    with Consumer(admin.connection.bootstrap, topic, group=topic):
        # The broker has assigned both; the consumer would learn of it at its first poll.
        wait_until(lambda: [len(member.assignment) for member in members_of(admin, topic)] == [2])
    wait_until(lambda: members_of(admin, topic) == ())


def members_of(admin: Admin, group: str) -> tuple[Member, ...]:
    described = admin.groups.find(group)
    return described.members if described else ()


def test_commit_after_removal_from_the_group_fails(admin: Admin, topic: str):
    """The member stalls for too long, and the group removes it."""
    stalls = {
        "session.timeout.ms": 6000,
        "max.poll.interval.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, ["a"] * 3)
    with Consumer(bootstrap, topic, group=topic, options=stalls) as consumer:
        wait_until(lambda: bool(consumer.poll(1)))
        wait_until(lambda: not getattr(admin.groups.find(topic), "members", None))
        with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
            consumer.commit()


def test_patterns_and_default_groups(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    admin.topics.create(topic + "-b", partitions=1)
    produce(bootstrap, topic, ["1"])
    produce(bootstrap, topic + "-b", ["2"])
    with Consumer(
        bootstrap, f"^{topic}", subscribe=True, until_end=True, auto_commit=False
    ) as consumer:
        assert consumer.membership is not None and consumer.membership.group == default_group()
        assert values(list(consumer)) == [b"1", b"2"]
    with Consumer(bootstrap, topic, subscribe=True) as consumer:
        assert consumer.membership is not None and consumer.membership.group == default_group()


def test_pattern_without_a_group_commits_nothing(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    admin.topics.create(topic + "-b", partitions=2)
    produce(bootstrap, topic, ["1"])
    produce(bootstrap, topic + "-b", ["2"])
    before = {group.id for group in admin.groups.list()}
    for _reader in range(2):
        with Consumer(bootstrap, f"^{topic}", until_end=True) as consumer:
            assert consumer.membership is None
            assert values(list(consumer)) == [b"1", b"2"]
    assert {group.id for group in admin.groups.list()} == before
    with Consumer(bootstrap, f"^{topic}$", until_end=True) as consumer:
        assert values(list(consumer)) == [b"1"]


def test_pattern_without_a_group_finds_new_topics_and_partitions(
    admin: Admin, topic: str, monkeypatch
):
    monkeypatch.setattr("millstream.client.consuming.manual_assignment.LOOK_FOR_TOPICS_S", 0.2)
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, ["1"])
    with Consumer(bootstrap, f"^{topic}") as consumer:
        received: list[bytes] = []

        def has_read(count: int) -> bool:
            received.extend(values(consumer.poll()))
            return len(received) >= count

        wait_until(lambda: has_read(1))
        admin.topics.create(topic + "-later", partitions=1)
        produce(bootstrap, topic + "-later", ["2"])
        wait_until(lambda: has_read(2))
        admin.topics.add_partitions(topic + "-later", 2)
        with Producer(bootstrap) as producer:
            producer.send(topic + "-later", "3", partition=1)
        wait_until(lambda: has_read(3))
        assert received == [b"1", b"2", b"3"]
        assert len(consumer.positions()) == len(admin.topics.partitions(topic)) + 2


def test_deleted_topic_does_not_end_a_consumer_with_a_pattern(
    admin: Admin, topic: str, monkeypatch
):
    """The topic is deleted before the consumer has requested its offsets."""
    monkeypatch.setattr("millstream.client.consuming.manual_assignment.LOOK_FOR_TOPICS_S", 0.2)
    bootstrap = admin.connection.bootstrap
    produce(bootstrap, topic, ["1"])
    with Consumer(bootstrap, f"^{topic}") as consumer:
        wait_until(lambda: values(consumer.poll()) == [b"1"])
        resolve = Position.resolve
        requests = []

        def too_late(self: Position, *arguments) -> dict[TopicPartition, int]:
            requests.append(self)
            if len(requests) == 1:
                raise UnknownTopic("the topic does not exist")
            return resolve(self, *arguments)

        monkeypatch.setattr(Position, "resolve", too_late)
        admin.topics.create(topic + "-later", partitions=1)
        produce(bootstrap, topic + "-later", ["2"])
        wait_until(lambda: values(consumer.poll()) == [b"2"])
        assert len(requests) == 2


@pytest.mark.parametrize("group", [None, "patterns"])
def test_pattern_without_a_match_is_rejected(admin: Admin, topic: str, group: str | None):
    with (
        pytest.raises(
            UnknownTopic, match=r"no topic matches the pattern '\^nothing-of'; see the names"
        ),
        Consumer(
            admin.connection.bootstrap, "^nothing-of", group=group, until_end=True
        ) as consumer,
    ):
        for _try in range(100):
            consumer.poll()


def test_pattern_that_is_not_an_expression_is_rejected(admin: Admin):
    with pytest.raises(ClientError, match=r"'\^a\(' is not a regular expression"):
        Consumer(admin.connection.bootstrap, "^a(")


def test_pattern_matches_internal_topics_only_if_it_names_them():
    known = ["__consumer_offsets", "orders", "other"]
    assert TopicSelection(["^.*"]).topics(known) == ["orders", "other"]
    assert TopicSelection(["^__", "orders"]).topics(known) == ["__consumer_offsets", "orders"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_reads_internal_topics_only_if_named(admin: Admin, topic: str, protocol: str):
    if protocol == "consumer" and not admin.protocol.supports("ConsumerGroupHeartbeat"):
        # These tests also run against other brokers; KIP-848 came with Kafka 4.0.
        pytest.skip("the broker has no consumer protocol")
    options = {"group.protocol": protocol}

    def read_topics(consumer: Consumer) -> set[str]:
        assert consumer.membership is not None
        return {partition.topic for partition in consumer.membership.owned}

    with (
        member(admin, "^.*", topic, options=options) as first,
        Consumer(admin.connection.bootstrap, "^.*", group=topic, options=options) as second,
    ):

        def both_settled() -> bool:
            for consumer in (first, second):
                consumer.poll(100, timeout_s=0.05)
            topics = read_topics(first) | read_topics(second)
            stable = admin.groups.get(topic).state == "Stable"
            return stable and joined(second) and topic in topics

        wait_until(both_settled)
        assert not [
            name for name in read_topics(first) | read_topics(second) if name.startswith("__")
        ]
    with member(admin, "^__consumer", topic + "-internal", options=options) as consumer:
        wait_until(lambda: consumer.poll(1) is not None and bool(read_topics(consumer)))
        assert read_topics(consumer) == {"__consumer_offsets"}
    both = ["__consumer_offsets", f"^{topic}$"]
    with member(admin, both, topic + "-both", options=options) as consumer:
        wait_until(lambda: consumer.poll(1) is not None and bool(read_topics(consumer)))
        assert read_topics(consumer) == {"__consumer_offsets", topic}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_pattern_of_a_group_matches_the_beginning_of_names(admin: Admin, topic: str, protocol: str):
    if protocol == "consumer" and not admin.protocol.supports("ConsumerGroupHeartbeat"):
        # These tests also run against other brokers; KIP-848 came with Kafka 4.0.
        pytest.skip("the broker has no consumer protocol")
    bootstrap = admin.connection.bootstrap
    admin.topics.create(topic + "-b", partitions=1)
    produce(bootstrap, topic, ["1"])
    produce(bootstrap, topic + "-b", ["2"])
    for pattern, expected in ((f"^{topic}", [b"1", b"2"]), (f"^{topic}$", [b"1"])):
        with Consumer(
            bootstrap,
            pattern,
            group=topic + str(len(expected)),
            until_end=True,
            options={"group.protocol": protocol},
        ) as consumer:
            assert values(list(consumer)) == expected


def test_invalid_arguments_of_a_group_are_rejected(admin: Admin, topic: str):
    bootstrap = admin.connection.bootstrap
    with pytest.raises(ClientError, match="share its partitions"):
        Consumer(bootstrap, topic, group=topic, partitions=[0])
    with pytest.raises(UnknownTopic):
        Consumer(bootstrap, topic + "x", group=topic)
    with (
        Consumer(bootstrap, topic, until_end=True) as consumer,
        pytest.raises(ClientError, match="without a group cannot commit"),
    ):
        consumer.commit()


def test_groups_of_the_consumer_protocol_look_the_same(admin: Admin, topic: str):
    if not admin.protocol.supports("ConsumerGroupHeartbeat"):
        # These tests also run against other brokers; KIP-848 came with Kafka 4.0.
        pytest.skip("the broker has no consumer protocol")
    produce(admin.connection.bootstrap, topic, ["a", "b"])
    with member(
        admin, topic, topic, auto_commit=False, options={"group.protocol": "consumer"}
    ) as consumer:
        wait_until(
            lambda: consumer.poll(1) is not None and admin.groups.get(topic).state == "Stable"
        )
        group = admin.groups.get(topic)
        (described,) = group.members
        assert (group.type, described.assignment) == (
            "consumer",
            (TopicPartition(topic, 0), TopicPartition(topic, 1)),
        )
        assert [listed.type for listed in admin.groups.list() if listed.id == topic] == ["consumer"]
        with pytest.raises(GroupActive):
            admin.groups.delete(topic)

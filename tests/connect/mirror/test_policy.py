"""What a mirror decides: names and loops, settings of topics, and where a group goes on in the other cluster."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.errors import ClientError
from millstream.connect.mirror.copies import rows_of
from millstream.connect.mirror.declare import directions, mirror, mirror_name
from millstream.connect.mirror.direction import MirrorCluster
from millstream.connect.mirror.offsets import (
    Bounds,
    Copy,
    Row,
    backward,
    find_copy,
    first_own,
    last_copy,
    moves,
)
from millstream.connect.mirror.policy import (
    HEADER,
    Origin,
    Selection,
    check_cluster_name,
    name_of_address,
    words,
)
from millstream.connect.mirror.settings import LONGEST_MS, TIMES, TopicPlan, TopicState, plan_topic
from millstream.core.types import TopicPartition
from millstream.pipelines import Pipeline

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class TestNames:
    def test_a_copy_is_named_after_its_cluster_or_keeps_its_name(self) -> None:
        assert Selection("east", "west", ("orders",)).target_topic("orders") == "east.orders"
        assert Selection("east", "west", ("orders",), naming="identity").target_topic("orders") == "orders"

    def test_what_came_from_the_target_does_not_go_back(self) -> None:
        back = Selection("west", "east", (".*",))
        assert back.copies("orders") and back.copies("north.orders")
        assert not back.copies("east.orders")
        assert not back.copies("north.east.orders"), "also over a third cluster"
        assert back.copies("eastern.orders") and back.copies("east"), "the name itself, not its beginning"
        assert Selection("west", "east", (".*",), naming="identity").copies("east.orders")

    def test_internal_topics_and_what_is_excluded_stay(self) -> None:
        some = Selection("a", "b", ("orders", "pay.*"), exclude=("pay.test",))
        chosen = ["orders", "payments", "pay.eu", "pay.test", "order", "orders2", "__consumer_offsets"]
        assert [one for one in chosen if some.copies(one)] == ["orders", "payments", "pay.eu"]
        assert not Selection("a", "b", (".*",)).copies("__millstream_progress")

    def test_dots_of_plain_names_are_dots(self) -> None:
        assert not Selection("a", "b", ("my.topic",)).copies("my-topic")

    def test_the_way_back_is_known_by_name(self) -> None:
        there = Selection("a", "b", ("orders",))
        assert there.brought("b.orders") == "orders" and there.brought("orders") is None
        assert Selection("a", "b", ("orders",), naming="identity").brought("orders") == "orders"

    def test_wrong_names_are_told(self) -> None:
        with pytest.raises(ClientError, match="cannot be the name of a cluster"):
            check_cluster_name("us.east")
        with pytest.raises(ClientError, match="no regular expression"):
            Selection("a", "b", ("pay(",))
        assert name_of_address("broker-1.example.com:9092,other:9092") == "broker-1-example-com-9092"
        assert words("orders, pay.*,") == ("orders", "pay.*")

    @given(
        st.text("abcXYZ09-_", min_size=1), st.text("abc._-09", min_size=1), st.integers(0, 99), st.integers(0)
    )
    def test_an_origin_is_read_as_it_was_written(self, cluster: str, topic: str, part: int, at: int) -> None:
        for origin in (Origin(cluster, topic, part, at), Origin(cluster, topic, part, at, "a-b_c")):
            assert Origin.parse(origin.encode()) == origin

    @pytest.mark.parametrize("value", [None, b"", b"a/b/c", b"a/b/x/1", b"\xff/b/1/2", b"a/b/1/2/3/4"])
    def test_what_no_mirror_wrote_is_no_origin(self, value: bytes | None) -> None:
        assert Origin.parse(value) is None


class TestSettings:
    def test_a_new_topic_is_like_its_source_but_keeps_times(self) -> None:
        source = TopicState(6, 3, {"retention.ms": "5", "message.timestamp.type": "LogAppendTime"})
        plan = plan_topic(source, None, brokers=2, follow_settings=True)
        assert plan == TopicPlan(create=TopicState(6, 2, {"retention.ms": "5", **TIMES}))
        assert TIMES["message.timestamp.before.max.ms"] == LONGEST_MS

    def test_settings_follow_except_what_is_the_targets_business(self) -> None:
        source = TopicState(2, 1, {"cleanup.policy": "compact", "min.insync.replicas": "2"})
        target = TopicState(2, 1, {"retention.ms": "9", "min.insync.replicas": "1", **TIMES})
        plan = plan_topic(source, target, brokers=1, follow_settings=True)
        assert plan == TopicPlan(set={"cleanup.policy": "compact"}, delete=("retention.ms",))

    def test_partitions_grow_and_never_shrink(self) -> None:
        one, many = TopicState(1, 1, dict(TIMES)), TopicState(4, 1, dict(TIMES))
        assert plan_topic(many, one, brokers=1, follow_settings=True).grow_to == 4
        assert not plan_topic(one, many, brokers=1, follow_settings=True)

    def test_the_second_direction_of_a_shared_topic_leaves_settings_alone(self) -> None:
        source, target = TopicState(1, 1, {"retention.ms": "1"}), TopicState(1, 1, {"retention.ms": "2"})
        assert not plan_topic(source, target, brokers=1, follow_settings=False)


class TestDeclarations:
    def test_both_ways_are_two_flows_of_which_one_leads_where_topics_are_shared(self) -> None:
        pipeline = Pipeline("m", bootstrap="e:1")
        there, back = mirror(pipeline, "e=e:1", "w=w:2", topics="orders", both=True, naming="identity")
        assert [*pipeline.flows] == ["e-to-w", "w-to-e"]
        assert (there.leads, back.leads) == (True, False)
        assert all(one.leads for one in directions("e=e:1", "w=w:2", topics="t", both=True))
        assert (back.source, back.target) == (there.target, there.source)

    def test_clusters_are_named_or_get_a_name(self) -> None:
        assert MirrorCluster.parse("east=h:1,i:2") == MirrorCluster("east", "h:1,i:2")
        assert MirrorCluster.parse("h.example:1").name == "h-example-1"
        one, other = MirrorCluster.parse("b=h:1"), MirrorCluster.parse("a=i:1")
        assert mirror_name(one, other) == mirror_name(other, one) == "mirror-a-b"

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"source": "e=h:1", "target": "e=i:1"}, "both clusters are called e"),
            ({"forward": True}, "forward is said of topics that keep their names"),
            ({"naming": "suffix"}, "naming='suffix' is unknown"),
            ({"interval": "soon"}, "'soon' is not a time"),
            ({"groups": "("}, "no regular expression"),
            ({"source": "e.u=h:1"}, "cannot be the name of a cluster"),
            ({"source": "e=h:x"}, "is not host:port"),
        ],
    )
    def test_what_is_wrong_is_told(self, given: dict[str, object], told: str) -> None:
        said = {"source": "e=h:1", "target": "w=i:1", "topics": "orders"} | given
        with pytest.raises(ClientError, match=re.escape(told)):
            directions(**said)  # type: ignore[arg-type]


class TestRows:
    def test_copies_are_told_by_the_last_header_of_the_cluster_and_topic_that_is_meant(self) -> None:
        def made(*origins: Origin) -> list[dict[str, object]]:
            return [{"key": HEADER, "value": one.encode()} for one in origins]

        mine, other = Origin("east", "t", 1, 40), Origin("north", "t", 1, 7)
        headers = [
            made(mine),
            None,
            made(mine, other),
            made(other, mine),
            [{"key": "h", "value": b"east/t/1/3"}, *made(mine), {"key": "h", "value": None}],
            made(mine._replace(topic="u")),
            made(mine._replace(partition=0)),
            [{"key": HEADER, "value": None}],
            [],
        ]
        batch = pa.RecordBatch.from_pydict(
            {"offset": list(range(10, 10 + len(headers))), "headers": headers},
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        found = [row.source for row in rows_of(batch.slice(1), "east", "t", TopicPartition("east.t", 1))]
        assert found == [None, None, 40, 40, None, None, None, None]
        assert rows_of(batch, "east", "t", TopicPartition("east.t", 1))[0] == Row(10, 40)

    def test_copies_of_a_topic_that_had_the_name_before_are_no_copies_of_this_one(self) -> None:
        origins = [Origin("east", "t", 1, at, id_) for at, id_ in ((7, "old"), (0, "new"), (1, ""))]
        batch = pa.RecordBatch.from_pydict(
            {"offset": [0, 1, 2], "headers": [[{"key": HEADER, "value": one.encode()}] for one in origins]},
            schema=pa.schema([("offset", pa.int64()), ("headers", HEADERS)]),
        )
        place = TopicPartition("east.t", 1)
        assert [row.source for row in rows_of(batch, "east", "t", place, "new")] == [None, 0, 1]
        assert rows_of(batch, "east", "t", place) == [Row(0, 7, "old"), Row(1, 0, "new"), Row(2, 1, "")]


class Partition:
    """Rows of a partition as a reader gives them, a random number at a time."""

    def __init__(self, rows: Sequence[Row], seed: int = 0) -> None:
        self.rows, self.reads = rows, 0
        self._dice = random.Random(seed)

    def __call__(self, at: int) -> Sequence[Row]:
        self.reads += 1
        return [row for row in self.rows if row.offset >= at][: self._dice.randint(1, 5)]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[Row], Bounds]:
    """Copies in order, with gaps on both sides (markers, compaction) and records of others between them."""
    rows, offset, source = [], draw(st.integers(0, 5)), draw(st.integers(0, 5))
    begin = offset
    for _ in range(draw(st.integers(0, 30))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        if draw(st.booleans()):
            source += draw(st.sampled_from([0, 0, 1, 9]))
            rows.append(Row(offset, source))
            source += 1
        else:
            rows.append(Row(offset, None))
        offset += 1
    return rows, Bounds(begin, offset + draw(st.integers(0, 3)))


def copies(rows: Sequence[Row], holds: Callable[[Copy], bool] = lambda one: True) -> list[Copy]:
    found = [Copy(row.source, row.offset) for row in rows if row.source is not None]
    return [one for one in found if holds(one)]


class TestOffsets:
    @given(partitions(), st.integers(0, 80), st.integers(0, 99), st.data())
    def test_a_copy_is_found_wherever_it_is(
        self, drawn: tuple[list[Row], Bounds], wanted: int, seed: int, data: st.DataObject
    ) -> None:
        rows, bounds = drawn
        hint = data.draw(st.sampled_from([None, *copies(rows)]))
        found = find_copy(Partition(rows, seed), bounds, wanted, hint)
        later = copies(rows, lambda one: one.source >= wanted)
        assert found.first == (later[0] if later else None)
        if not later:
            assert found.before == (copies(rows)[-1] if copies(rows) else None)

    @given(partitions(), st.integers(0, 80), st.integers(0, 99))
    def test_the_last_copy_is_found(self, drawn: tuple[list[Row], Bounds], end: int, seed: int) -> None:
        rows, bounds = drawn
        bounds = Bounds(bounds.begin, min(bounds.end, end))
        before = copies(rows, lambda one: one.target < bounds.end)
        assert last_copy(Partition(rows, seed), bounds) == (before[-1] if before else None)

    @given(partitions(), st.integers(0, 90), st.integers(0, 99))
    def test_going_back_skips_nothing_and_repeats_nothing(
        self, drawn: tuple[list[Row], Bounds], committed: int, seed: int
    ) -> None:
        rows, bounds = drawn
        read = copies(rows, lambda one: one.target < committed)
        unread = copies(rows, lambda one: one.target >= committed)
        at = backward(Partition(rows, seed), bounds, committed)
        if at is None:
            assert not read and not unread
        else:
            assert all(one.source < at for one in read) and all(one.source >= at for one in unread)

    @given(partitions(), st.integers(0, 80), st.integers(0, 99))
    def test_the_first_record_that_is_no_copy(
        self, drawn: tuple[list[Row], Bounds], at: int, seed: int
    ) -> None:
        rows, bounds = drawn
        own = [row.offset for row in rows if row.source is None and row.offset >= at]
        assert first_own(Partition(rows, seed), bounds, at) == (own[0] if own else None)

    def test_a_long_partition_takes_few_reads(self) -> None:
        log = Partition([Row(offset, offset * 3) for offset in range(100_000)])
        assert find_copy(log, Bounds(0, 100_000), 150_001).first == Copy(150_003, 50_001)
        assert log.reads < 20
        near = Partition([Row(offset + 7, offset) for offset in range(100_000)])
        assert find_copy(near, Bounds(0, 100_007), 60_000, Copy(50_000, 50_007)).first == Copy(60_000, 60_007)
        assert near.reads == 1, "nothing is missing in between, so it is where one would look for it"

    def test_offsets_only_move_forward_and_are_told_once(self) -> None:
        a, b, c, d = (TopicPartition("t", number) for number in range(4))
        wanted = {a: 5, b: 5, c: 5, d: 5}
        assert moves(wanted, {a: 4, b: 5, d: 2}, {d: 5}) == {a: 5, c: 5}

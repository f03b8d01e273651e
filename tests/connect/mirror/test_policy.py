"""Names of mirrored topics, loops between clusters, and the origin of a copied record."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.errors import ClientError
from millstream.connect.mirror.policy import (
    Origin,
    Selection,
    check_cluster_name,
    name_of_address,
    words,
)


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
        assert there.original_topic("b.orders") == "orders" and there.original_topic("orders") is None
        assert Selection("a", "b", ("orders",), naming="identity").original_topic("orders") == "orders"

    def test_wrong_names_are_told(self) -> None:
        with pytest.raises(ClientError, match="cannot be the name of a cluster"):
            check_cluster_name("us.east")
        with pytest.raises(ClientError, match="not a regular expression"):
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

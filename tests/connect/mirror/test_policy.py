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
    def test_copy_has_prefix_of_its_cluster_or_keeps_its_name(self) -> None:
        assert Selection("east", "west", ("orders",)).target_topic("orders") == "east.orders"
        assert (
            Selection("east", "west", ("orders",), naming="identity").target_topic("orders")
            == "orders"
        )

    def test_copies_from_the_target_are_not_copied_back(self) -> None:
        back = Selection("west", "east", (".*",))
        assert back.copies("orders") and back.copies("north.orders")
        assert not back.copies("east.orders")
        assert not back.copies("north.east.orders"), "also over a third cluster"
        assert back.copies("eastern.orders") and back.copies("east"), (
            "the name itself, not its beginning"
        )
        assert Selection("west", "east", (".*",), naming="identity").copies("east.orders")

    def test_internal_and_excluded_topics_are_not_copied(self) -> None:
        selection = Selection("a", "b", ("orders", "pay.*"), exclude=("pay.test",))
        names = [
            "orders",
            "payments",
            "pay.eu",
            "pay.test",
            "order",
            "orders2",
            "__consumer_offsets",
        ]
        assert [name for name in names if selection.copies(name)] == [
            "orders",
            "payments",
            "pay.eu",
        ]
        assert not Selection("a", "b", (".*",)).copies("__millstream_progress")

    def test_dots_of_plain_names_are_literal(self) -> None:
        assert not Selection("a", "b", ("my.topic",)).copies("my-topic")

    def test_original_topic_is_recognized_by_name(self) -> None:
        selection = Selection("a", "b", ("orders",))
        assert (
            selection.original_topic("b.orders") == "orders"
            and selection.original_topic("orders") is None
        )
        assert (
            Selection("a", "b", ("orders",), naming="identity").original_topic("orders") == "orders"
        )

    def test_invalid_names_and_patterns_are_rejected(self) -> None:
        with pytest.raises(ClientError, match="cannot be the name of a cluster"):
            check_cluster_name("us.east")
        with pytest.raises(ClientError, match="not a regular expression"):
            Selection("a", "b", ("pay(",))
        assert (
            name_of_address("broker-1.example.com:9092,other:9092") == "broker-1-example-com-9092"
        )
        assert words("orders, pay.*,") == ("orders", "pay.*")

    @given(
        st.text("abcXYZ09-_", min_size=1),
        st.text("abc._-09", min_size=1),
        st.integers(0, 99),
        st.integers(0),
    )
    def test_origin_survives_a_round_trip(
        self, cluster: str, topic: str, part: int, at: int
    ) -> None:
        for origin in (Origin(cluster, topic, part, at), Origin(cluster, topic, part, at, "a-b_c")):
            assert Origin.parse(origin.encode()) == origin

    @pytest.mark.parametrize(
        "value", [None, b"", b"a/b/c", b"a/b/x/1", b"\xff/b/1/2", b"a/b/1/2/3/4"]
    )
    def test_foreign_header_is_not_an_origin(self, value: bytes | None) -> None:
        assert Origin.parse(value) is None

"""Patterns of subscriptions, resolved to topics."""

from __future__ import annotations

from millstream.groups.consumer.topic_patterns import Resolver
from support.groups.consumer_world import topics_of


def test_topics_are_resolved_anew_when_they_change() -> None:
    resolver = Resolver()
    assert resolver.resolve("o.*", topics_of(1, orders=1, trips=1)) == {"orders"}
    assert resolver.resolve("o.*", topics_of(2, orders=1, offers=1)) == {"orders", "offers"}


def test_an_expression_that_cannot_be_read_matches_nothing() -> None:
    assert Resolver().resolve("(", topics_of(1, orders=1)) == frozenset()

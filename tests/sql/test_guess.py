"""Columns guessed from values: the narrowest types that fit all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.producer import Producer
from millstream.sql.catalog import Column
from millstream.sql.guess import Guess, common_type, guess, sample, sql_type, type_of


def columns(*rows: Any) -> dict[str, str]:
    guessed = guess([json.dumps(row).encode() for row in rows])
    assert guessed is not None and guessed.value == "json"
    return {column.name: column.type for column in guessed.columns}


def test_types_are_as_narrow_as_the_values_allow() -> None:
    assert columns(
        {
            "id": "a",
            "n": 1,
            "x": 1,
            "ok": True,
            "at": "2026-01-01T00:00:00.5Z",
            "day": "2026-01-01",
            "gone": None,
        },
        {
            "id": "b",
            "n": 2,
            "x": 1.5,
            "ok": None,
            "at": "2026-01-01 10:00:00+01:00",
            "day": "2026-01-02",
        },
    ) == {
        "id": "STRING",
        "n": "BIGINT",
        "x": "DOUBLE",
        "ok": "BOOLEAN",
        "at": "TIMESTAMP",
        "day": "DATE",
        "gone": "STRING",
    }


def test_types_that_do_not_fit_together_become_string() -> None:
    assert columns(
        {"a": 1, "b": "2026-01-01", "c": [1], "d": {"x": 1}},
        {"a": "x", "b": "soon", "c": 1, "d": 2},
    ) == dict.fromkeys("abcd", "STRING")


def test_nested_types_are_guessed_and_grow_with_the_sample() -> None:
    assert columns(
        {"a": {"b": 1, "c d": [1]}}, {"a": {"e": None, "c d": [1.5, None]}}, {"f": []}
    ) == {
        "a": "STRUCT<b: BIGINT, `c d`: ARRAY<DOUBLE>, e: STRING>",
        "f": "STRING",
    }


def test_columns_keep_the_order_of_values_and_fit_large_numbers() -> None:
    assert list(columns({"z": 1, "a": 2}, {"m": 3})) == ["z", "a", "m"]
    assert columns({"a": 2**70}, {"a": 1}) == {"a": "DECIMAL(38,0)"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([b"hello", b"{"], Guess("string", (), 2)),
        ([b"hello", b"\xff\x00"], Guess("raw", (), 2)),
        ([b"5", b"[1]"], Guess("string", (), 2)),
        ([b"{}"], Guess("string", (), 1)),
        ([b'{"a":1}', b'{"a":2}', b"odd"], Guess("json", (Column("a", "BIGINT"),), 3, odd=1)),
    ],
)
def test_values_that_are_not_objects_are_text_or_bytes(
    values: list[bytes], expected: Guess | None
) -> None:
    assert guess(values) == expected


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(TREES, min_size=1, max_size=4))
def test_order_of_values_does_not_change_a_type(values: list[Any]) -> None:
    kinds = [type_of(value) for value in values]
    forwards, backwards = None, None
    for kind, other in zip(kinds, reversed(kinds), strict=True):
        forwards, backwards = common_type(forwards, kind), common_type(backwards, other)
    assert sorted(sql_type(forwards)) == sorted(
        sql_type(backwards)
        # The fields of a struct are in order of appearance.
    )


def test_the_sample_is_the_newest_of_a_topic(shared_broker, topic_name: str) -> None:
    from millstream.client.admin.client import Admin

    with Admin(shared_broker.bootstrap) as admin:
        admin.topics.create(topic_name, partitions=1)
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(30):
            producer.send(topic_name, None if number == 29 else str(number).encode())
    assert sample(shared_broker.bootstrap, topic_name, 5) == [b"25", b"26", b"27", b"28"]

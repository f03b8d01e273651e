"""Records as JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.record_json import from_json, to_json
from millstream.client.errors import ClientError
from millstream.client.record import Record

payloads = (
    st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore"))
)
names = st.text(st.characters(codec="utf-8"), max_size=10)


@given(payloads, payloads, st.lists(st.tuples(names, payloads), max_size=3))
def test_nothing_is_lost_on_the_way_through_json(key, value, headers):
    line = to_json(Record("t", 3, 4, 5, "create", key, value, tuple(headers)))
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert from_json(line) == (key, value, tuple(headers), 3, 5)


def test_the_shape_is_stable():
    line = to_json(Record("t", 3, 4, 5, "append", b"k", b"\xff", (("h", None),)))
    assert list(json.loads(line).items()) == [
        ("topic", "t"),
        ("partition", 3),
        ("offset", 4),
        ("timestamp", 5),
        ("timestamp_type", "append"),
        ("key", "k"),
        ("value", {"base64": "/w=="}),
        ("headers", [["h", None]]),
    ]


def test_json_values_are_sent_as_their_text():
    assert from_json(b'{"value": {"id": 1}}').value == b'{"id": 1}'
    assert from_json(b'{"value": 12, "key": true}')[:2] == (b"true", b"12")
    assert from_json(b"{}") == (None, None, (), None, None)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"headers": [1]}', b'{"value": {"base64": "?"}}', b"\xff"])
def test_what_is_no_record_is_told(line: bytes):
    with pytest.raises(ClientError, match="not a record in JSON"):
        from_json(line)

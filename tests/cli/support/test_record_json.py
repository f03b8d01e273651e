"""Records as JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.support.record_json import from_json, to_json
from millstream.client.errors import ClientError
from millstream.client.record import Record

payloads = (
    st.none()
    | st.binary(max_size=20)
    | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore"))
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
    assert from_json(b'{"value": null}') == (None, None, (), None, None)
    assert from_json(b'{"value": [], "key": {}}')[:2] == (b"{}", b"[]")


@pytest.mark.parametrize("number", ["1.10", "12345678901234567.89", "1E400", "-0.0", "0.1000"])
def test_numbers_are_sent_as_they_are_written(number: str):
    """Through a float, 12345678901234567.89 would be sent as 1.2345678901234568e+16."""
    assert from_json(f'{{"value": {number}}}'.encode()).value == number.encode()
    nested = f'{{"a": [{number}, "{number}"]}}'
    assert from_json(f'{{"value": {nested}}}'.encode()).value == nested.encode()
    assert from_json(f'{{"value": 1, "headers": {{"h": {number}}}}}'.encode()).headers == (
        ("h", number.encode()),
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a record in JSON"),
        (b"[1]", "expected an object, not a list"),
        (b'{"value": 1, "headers": [1]}', "a header is .*, not 1"),
        (b'{"value": 1, "headers": "ab"}', "headers are a list of pairs, not a string"),
        (b'{"value": {"base64": "?"}}', "not a record in JSON"),
        (
            b'{"value": 1, "timestamp": "today"}',
            'timestamp is a whole number of milliseconds, not "today"',
        ),
        (b'{"value": 1, "value": null}', 'the name "value" is repeated'),
        (b'{"value": 1, "headers": {"h": "1", "h": "2"}}', 'the name "h" is repeated'),
        (b'{"value": {"a": NaN}}', "NaN is not a number in JSON"),
        (b'{"value": 1, "timestamp": 1.5}', "timestamp is a whole number of milliseconds, not 1.5"),
        (b"\xff", "not a record in JSON"),
        (b"[" * 100_000, "not a record in JSON"),
    ],
)
def test_what_is_no_record_is_told(line: bytes, reason: str):
    with pytest.raises(ClientError, match=reason):
        from_json(line)


def test_headers_may_be_an_object():
    assert from_json(b'{"value": 1, "headers": {"ab": "c", "d": null}}').headers == (
        ("ab", b"c"),
        ("d", None),
    )


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            b'{"customer": "ada"}',
            'no "value" in {"customer": "ada"}',
            'or "value": null for a tombstone',
        ),
        (b"{}", 'no "value" in {}', "without --format json every line is sent unchanged"),
        (b'{"key": "ada", "vlaue": 1}', 'unknown name "vlaue" in {"key"', 'did you mean "value"?'),
        (b'{"value": 1, "payload": 2}', 'unknown name "payload"', "without --format json"),
    ],
)
def test_line_that_would_become_a_tombstone_is_refused(line: bytes, message: str, hint: str):
    with pytest.raises(ClientError) as refused:
        from_json(line)
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_integer_of_thousands_of_digits_is_sent_as_written():
    """Python refuses to convert more than 4,300 digits."""
    digits = "9" * 5000
    assert from_json(f'{{"value": {digits}}}'.encode()).value == digits.encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            b'{"value": 1, "timestamp": 9223372036854775808}',
            "timestamp is out of range: 9223372036854775808",
        ),
        (b'{"value": 1, "timestamp": 99999999999999999999999}', "timestamp is a whole number"),
        (b'{"value": "\\ud800"}', r"\ud800 is half of a surrogate pair"),
        (b'{"value": {"base64": 5}}', "not base64: 5"),
        (b'{"value": {"base64": "!!"}}', 'not base64: "!!"'),
        (b"[" * 100_000, "too deeply nested"),
    ],
)
def test_reason_does_not_quote_python(line: bytes, reason: str):
    with pytest.raises(ClientError) as refused:
        from_json(line)
    assert f"({reason}" in refused.value.message
    assert "codec" not in str(refused.value) and "bytes-like" not in str(refused.value)

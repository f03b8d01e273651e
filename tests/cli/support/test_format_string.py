"""kcat's format strings."""

from __future__ import annotations

import pytest

from millstream.cli.support.format_string import compile_format
from millstream.client.errors import ClientError
from millstream.client.record import Record

RECORD = Record(
    "orders", 2, 17, 1_700_000_000_000, "create", b"k\xff", b"v\x00", (("a", b"1"), ("n", None))
)
NULLS = Record("orders", 0, 0, -1, "none", None, None, ())


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        (r"%t[%p] %o %k %s %h\n", b"orders[2] 17 k\xff v\x00 a=1,n=NULL\n"),
        ("%K %S %T", b"2 2 1700000000000"),
        ("%R%s", b"\0\0\0\2v\0"),
        ("100 %% %s", b"100 % v\0"),
        (r"\t\r\n\\\x41\x0a", b"\t\r\n\\A\n"),
        ("straße", "straße".encode()),
        (r"\q", rb"\q"),
        ("", b""),
    ],
)
def test_a_record_is_rendered(text: str, rendered: bytes):
    assert compile_format(text)(RECORD) == rendered


def test_nulls_have_length_minus_one_and_a_text_of_choice():
    assert compile_format("%k|%s|%K|%S|%h")(NULLS) == b"||-1|-1|"
    assert compile_format("%k|%s|%R", null=b"NULL")(NULLS) == b"NULL|NULL|\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%q", "%", "%é"])
def test_an_unknown_field_is_told(text: str):
    with pytest.raises(ClientError, match=r"unknown format %.*; use %s %S %R %k"):
        compile_format(text)

"""FROM and TO of ``millstream connect``: parsing, errors, and no passwords in texts."""

from __future__ import annotations

import pytest

from millstream.connect.addresses import (
    Address,
    AddressError,
    file_path,
    parse_address,
    without_password,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topic:orders", Address("topic", "orders")),
        ("topic:orders@a:9092,b:9093", Address("topic", "orders", cluster="a:9092,b:9093")),
        ("topic:orders?value=avro", Address("topic", "orders", options={"value": "avro"})),
        (
            "files:in/new?format=csv&header=false",
            Address("files", "in/new", options={"format": "csv", "header": "false"}),
        ),
        ("files:///data/in", Address("files", "/data/in")),
        ("parquet:lake/x", Address("parquet", "lake/x")),
        ("delta:/lake/x", Address("delta", "/lake/x")),
        ("sqlite:///shop.db#orders", Address("sqlite", "sqlite:///shop.db", "orders")),
        (
            "sqlite:////data/shop.db#orders?by=id",
            Address("sqlite", "sqlite:////data/shop.db", "orders", options={"by": "id"}),
        ),
        (
            "postgres://me:secret@db:5432/shop?sslmode=require#sales.orders?by=id&key=id",
            Address(
                "postgresql",
                "postgresql://me:secret@db:5432/shop?sslmode=require",
                "sales.orders",
                options={"by": "id", "key": "id"},
            ),
        ),
        (
            "postgresql:///shop?host=/run/pg#orders",
            Address("postgresql", "postgresql:///shop?host=/run/pg", "orders"),
        ),
    ],
)
def test_address_is_parsed(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "is not an address; addresses are topic:NAME"),
        ("topics:orders", "did you mean 'topic'"),
        ("topic:", "the name is missing"),
        ("topic:orders@nowhere", "'nowhere' is not HOST:PORT"),
        ("sqlite:///shop.db", "the table is missing"),
        ("sqlite://shop.db#orders", "the file is missing"),
        ("postgresql://db/shop", "the table is missing"),
        ("files:in?format", "cannot be parsed"),
    ],
)
def test_invalid_address_is_rejected_with_the_expected_form(text: str, message: str) -> None:
    with pytest.raises(AddressError, match=message.replace("?", r"\?")):
        parse_address(text)


def test_passwords_are_not_shown() -> None:
    address = parse_address("postgresql://me:secret@db/shop?password=secret&x=1#orders")
    assert str(address) == "postgresql://me@db/shop?password=***&x=1#orders"
    for url in ("postgresql:///shop", "sqlite:///shop.db", "sqlite:////data/shop.db"):
        assert without_password(url) == url


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///a/b.db", "a/b.db"), ("sqlite:////a/b%20c.db", "/a/b c.db")]
)
def test_sqlite_file_is_relative_or_absolute(url: str, path: str) -> None:
    assert file_path(url) == path

"""The registry of databases: each row is all that addresses, tables and help texts need."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millstream.connect import addresses
from millstream.connect.addresses import AddressError, file_path, names_file, parse_address
from millstream.connect.databases import registry
from millstream.connect.databases.database import Database, connect
from millstream.connect.databases.registry import DatabaseKind
from millstream.connect.databases.table import table

FOLDER = Path(registry.__file__).parent
EXAMPLES = {"sqlite": "sqlite:///shop.db", "postgresql": "postgresql://me@db/shop"}


@pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.scheme)
def test_every_row_has_a_package_and_a_database(kind: DatabaseKind) -> None:
    assert (FOLDER / kind.scheme / "__init__.py").exists()
    assert isinstance(connect(EXAMPLES[kind.scheme]), Database)


@pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.scheme)
def test_address_lag_and_help_follow_the_row(kind: DatabaseKind) -> None:
    url = EXAMPLES[kind.scheme]
    for scheme in (kind.scheme, *kind.aliases):
        address = parse_address(f"{scheme}{url.removeprefix(kind.scheme)}#orders")
        assert (address.kind, address.place, address.table) == (kind.scheme, url, "orders")
        assert address.is_database
        assert table(f"{scheme}{url.removeprefix(kind.scheme)}", "orders").lag_ms == kind.lag_ms
    assert kind.form in addresses.SOURCES and kind.form in addresses.TARGETS
    assert names_file(url) is kind.is_file


def test_unknown_url_is_rejected_with_the_forms_of_all_databases() -> None:
    with pytest.raises(AddressError, match="is not a database URL") as raised:
        connect("mysql://db/shop")
    assert all(kind.url_form in str(raised.value.hint) for kind in registry.KINDS)


@pytest.mark.parametrize(
    "url", ["postgresql://db/shop", "sqlite://host/shop.db", "sqlite:///", "x:y"]
)
def test_url_without_a_file_is_rejected(url: str) -> None:
    with pytest.raises(AddressError, match="does not name a file"):
        file_path(url)


def test_new_database_is_one_package_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DatabaseKind("duck", "duck:///FILE#TABLE", lag_ms=7, aliases=("dk",), is_file=True)
    urls: list[str] = []
    module: Any = ModuleType("millstream.connect.databases.duck")
    module.database = urls.append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry._BY_SCHEME, "duck", row)
    monkeypatch.setitem(registry.ALIASES, "dk", "duck")
    monkeypatch.setitem(addresses.KINDS, "duck", row.form)
    assert parse_address("dk:///pond.db?by=id#ducks").options == {"by": "id"}
    declared = table("duck:///pond.db", "ducks")
    assert (declared.url, declared.lag_ms) == (f"duck:///{Path('pond.db').absolute()}", 7)
    assert urls == ["duck:///pond.db"]

"""Each handler takes one of the Protocols of ``broker/services.py``."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from functools import cached_property
from pathlib import Path

import pytest

from millstream.broker import handlers, services
from millstream.broker.parts import Parts

FAMILIES = {name: kind for name, kind in vars(services).items() if name.endswith("Services")}
MODULES = sorted(
    path for path in Path(handlers.__path__[0]).glob("*.py") if path.stem != "__init__"
)
PROVIDED = {field.name for field in fields(Parts)} | {
    name for name, value in vars(Parts).items() if isinstance(value, cached_property)
}


def members(kind: type) -> set[str]:
    """The properties of a Protocol, inherited ones included."""
    return {name for name, value in inspect.getmembers(kind) if isinstance(value, property)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_handler_takes_the_services_of_its_family(path: Path) -> None:
    tree = ast.parse(path.read_text())
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    handles = [function for name, function in functions.items() if name.startswith("handle")]
    assert handles
    for function in handles:
        first = function.args.args[0]
        assert first.arg == "services" and first.annotation is not None
        assert ast.unparse(first.annotation) in FAMILIES


def test_parts_provide_every_service() -> None:
    missing = {
        (name, member) for name, kind in FAMILIES.items() for member in members(kind) - PROVIDED
    }
    assert missing == set()


def test_every_family_is_compared_with_the_parts() -> None:
    """mypy checks the types, in the tuple at the end of the module."""
    source = inspect.getsource(services).partition("def _satisfies")[2]
    assert [name for name in FAMILIES if f"        {name},\n" not in source] == []

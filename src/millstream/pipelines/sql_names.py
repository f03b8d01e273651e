"""Finds the tables of a query: the names after FROM and JOIN, without CTEs and functions.

This is small on purpose. Spark parses the query later; this finds the inputs before Spark starts.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)+`|[A-Za-z_][\w]*|[(),.]|\S""",
    re.S,
)
# fmt: off
_ENDS = frozenset((
    "where", "group", "having", "order", "limit", "union", "except", "intersect", "on", "using",
    "window", "lateral", "join", "inner", "left", "right", "full", "cross", "semi", "anti", "natural",
    "select", "qualify", "cluster", "distribute", "sort",
))
# fmt: on
_BEFORE_NAME = frozenset(("lateral", "only"))


def tables_named(query: str) -> tuple[str, ...]:
    """Return the names in order of appearance, without duplicates."""
    tokens = [word for word in _TOKEN.findall(query) if not word.startswith(("--", "/*", "'", '"'))]
    ctes = {_plain(word).lower() for word in _common_table_names(tokens)}
    tables: dict[str, None] = {}
    for position, word in enumerate(tokens):
        if word.lower() in ("from", "join") and not _is_function_keyword(tokens, position):
            for name in _listed(tokens, position + 1):
                if name.lower() not in ctes:
                    tables[name] = None
    return tuple(tables)


def _common_table_names(tokens: list[str]) -> list[str]:
    """Return the names that the query defines: ``WITH a AS (``, ``, b AS (``."""
    if not any(word.lower() == "with" for word in tokens):
        return []
    return [
        tokens[at - 1]
        for at in range(1, len(tokens) - 1)
        if tokens[at].lower() == "as" and tokens[at + 1] == "(" and _is_name(tokens[at - 1])
    ]


def _is_function_keyword(tokens: list[str], position: int) -> bool:
    """Return whether a FROM names no table.

    For example ``EXTRACT(YEAR FROM at)``, ``TRIM(BOTH 'x' FROM y)`` and ``IS DISTINCT FROM``.
    """
    if tokens[position].lower() != "from":
        return False
    if position and tokens[position - 1].lower() == "distinct":
        return True
    depth = 0
    for at in range(position - 1, -1, -1):
        word = tokens[at].lower()
        depth += (word == ")") - (word == "(")
        if depth < 0:
            return at > 0 and tokens[at - 1].lower() in (
                "extract",
                "trim",
                "substring",
                "substr",
                "overlay",
            )
        if depth == 0 and word == "select":
            return False
    return False


def _listed(tokens: list[str], position: int) -> list[str]:
    """Return the names of a list such as ``a x, b AS y``, without subqueries and functions."""
    names = []
    while position < len(tokens):
        if tokens[position].lower() in _BEFORE_NAME:
            position += 1
            continue
        if _is_name(tokens[position]) and tokens[position + 1 : position + 2] not in (["("], ["."]):
            names.append(_plain(tokens[position]))
        position = _next_comma(tokens, position)
        if position < 0:
            break
    return names


def _next_comma(tokens: list[str], position: int) -> int:
    """Return the position after the next comma of this list, or -1 at its end."""
    depth = 0
    for at in range(position, len(tokens)):
        word = tokens[at].lower()
        depth += (word == "(") - (word == ")")
        if depth < 0 or (depth == 0 and word in _ENDS):
            return -1
        if depth == 0 and word == ",":
            return at + 1
    return -1


def _is_name(word: str) -> bool:
    return word.startswith("`") or (
        (word[:1].isalpha() or word[:1] == "_") and word.lower() not in _ENDS
    )


def _plain(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word

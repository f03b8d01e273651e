"""Which tables a query names: what follows FROM and JOIN, without its own WITH names and without functions.

Small on purpose. Spark parses the query for real; this finds the inputs before there is a Spark.
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
    """The names, in order of appearance, each once."""
    tokens = [word for word in _TOKEN.findall(query) if not word.startswith(("--", "/*", "'", '"'))]
    own = {_plain(word).lower() for word in _common_table_names(tokens)}
    found: dict[str, None] = {}
    for position, word in enumerate(tokens):
        if word.lower() in ("from", "join") and not _is_function_keyword(tokens, position):
            for name in _listed(tokens, position + 1):
                if name.lower() not in own:
                    found[name] = None
    return tuple(found)


def _common_table_names(tokens: list[str]) -> list[str]:
    """Names that the query defines itself: ``WITH a AS (``, ``, b AS (``."""
    if not any(word.lower() == "with" for word in tokens):
        return []
    return [
        tokens[at - 1]
        for at in range(1, len(tokens) - 1)
        if tokens[at].lower() == "as" and tokens[at + 1] == "(" and _is_name(tokens[at - 1])
    ]


def _is_function_keyword(tokens: list[str], position: int) -> bool:
    """EXTRACT(YEAR FROM at), TRIM(BOTH 'x' FROM y), IS DISTINCT FROM: a FROM that names no table."""
    if tokens[position].lower() != "from":
        return False
    if position and tokens[position - 1].lower() == "distinct":
        return True
    depth = 0
    for at in range(position - 1, -1, -1):
        word = tokens[at].lower()
        depth += (word == ")") - (word == "(")
        if depth < 0:
            return at > 0 and tokens[at - 1].lower() in ("extract", "trim", "substring", "substr", "overlay")
        if depth == 0 and word == "select":
            return False
    return False


def _listed(tokens: list[str], position: int) -> list[str]:
    """The names from here on: ``a x, b AS y``; a subquery or a function is skipped."""
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
    """Behind the next comma of this list; -1 at its end."""
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
    return word.startswith("`") or ((word[:1].isalpha() or word[:1] == "_") and word.lower() not in _ENDS)


def _plain(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word

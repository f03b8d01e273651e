"""Regular expressions sent by clients, matched in linear time by an automaton without backtracking.

A malicious expression can make Python's ``re`` run forever, but not this automaton. It is made
deterministic lazily, only along the paths that names take, so most characters cost one lookup.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.regex_syntax import (
    Boundary,
    Chars,
    CharSet,
    Choice,
    InvalidRegex,
    Node,
    Repeat,
    Sequence,
    parse,
)

_MAX_STATES = 20_000
_MAX_STEPS = 5_000
_START, _WORD, _OTHER = range(3)
_END = ""


def compiled(pattern: str) -> Automaton:
    """Return the automaton of a pattern; raise ApiError if the pattern is invalid."""
    try:
        return Automaton(pattern)
    except InvalidRegex as error:
        message = f"{pattern!r} is not a regular expression: {error}"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


class Automaton:
    """States are numbers. A state consumes a character, or branches, or tests a boundary."""

    def __init__(self, pattern: str) -> None:
        """Build the states; raise InvalidRegex for an invalid pattern."""
        self._consume: dict[int, tuple[CharSet, int]] = {}
        self._free: dict[int, list[tuple[str | None, int]]] = {}
        self._count = 0
        start, self._end = self._new(), self._new()
        self._build(parse(pattern), start, self._end)
        self._reset(start)

    # ---- building ----

    def _new(self) -> int:
        self._count += 1
        if self._count > _MAX_STATES:
            raise InvalidRegex("too large")
        return self._count

    def _join(self, start: int, end: int, boundary: str | None = None) -> None:
        self._free.setdefault(start, []).append((boundary, end))

    def _build(self, node: Node, start: int, end: int) -> None:
        if isinstance(node, Chars):
            self._consume[start] = (node.has, end)
        elif isinstance(node, Boundary):
            self._join(start, end, node.kind)
        elif isinstance(node, Choice):
            for part in node.parts:
                first = self._new()
                self._join(start, first)
                self._build(part, first, end)
        elif isinstance(node, Sequence):
            self._build_sequence(node.parts, start, end)
        else:
            self._build_repeat(node, start, end)

    def _build_sequence(self, parts: Iterable[Node], start: int, end: int) -> None:
        for part in parts:
            following = self._new()
            self._build(part, start, following)
            start = following
        self._join(start, end)

    def _build_repeat(self, node: Repeat, start: int, end: int) -> None:
        for _ in range(node.least):
            following = self._new()
            self._build(node.part, start, following)
            start = following
        if node.most is None:
            loop, body = self._new(), self._new()
            self._join(start, loop)
            self._join(loop, body)
            self._join(loop, end)
            self._build(node.part, body, loop)
            return
        for _ in range(node.most - node.least):
            self._join(start, end)
            first, following = self._new(), self._new()
            self._join(start, first)
            self._build(node.part, first, following)
            start = following
        self._join(start, end)

    # ---- matching ----

    def _reset(self, start: int) -> None:
        """Drop the cached steps."""
        self._start = start
        self._numbers: dict[tuple[frozenset[int], int], int] = {}
        self._places: list[tuple[frozenset[int], int]] = []
        self._steps: dict[tuple[int, str], int] = {}
        self._first = self._number((frozenset((start,)), _START), self._numbers, self._places)

    @staticmethod
    def _number(
        place: tuple[frozenset[int], int],
        numbers: dict[tuple[frozenset[int], int], int],
        places: list[tuple[frozenset[int], int]],
    ) -> int:
        number = numbers.get(place)
        if number is None:
            number = numbers[place] = len(places)
            places.append(place)
        return number

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        if len(self._steps) > _MAX_STEPS:
            self._reset(self._start)
        place = self._first
        for char in text:
            step = self._steps.get((place, char))
            place = self._step(place, char) if step is None else step
        return self._accepts(place)

    def _step(self, place: int, char: str) -> int:
        states, before = self._places[place]
        following = frozenset(
            self._consume[state][1]
            for state in self._reachable(states, before, char)
            if state in self._consume and self._consume[state][0](char)
        )
        after = (following, _WORD if _is_word(char) else _OTHER)
        number = self._steps[(place, char)] = self._number(after, self._numbers, self._places)
        return number

    def _accepts(self, place: int) -> bool:
        accepted = self._steps.get((place, _END))
        if accepted is None:
            states, before = self._places[place]
            accepted = self._steps[(place, _END)] = self._end in self._reachable(
                states, before, _END
            )
        return bool(accepted)

    def _reachable(self, states: Iterable[int], before: int, after: str) -> set[int]:
        """Return the states reachable without consuming a character, between two characters."""
        seen = set(states)
        todo = list(seen)
        while todo:
            for boundary, state in self._free.get(todo.pop(), ()):
                if state not in seen and (boundary is None or _is_at(boundary, before, after)):
                    seen.add(state)
                    todo.append(state)
        return seen


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


def _is_at(boundary: str, before: int, after: str) -> bool:
    if boundary == "start":
        return before == _START
    if boundary == "end":
        return after == _END
    edge = (before == _WORD) != (after != _END and _is_word(after))
    return edge if boundary == "word" else not edge

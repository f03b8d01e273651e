"""Which topics the patterns of subscriptions match (KIP-848)."""

from __future__ import annotations

from millstream.core.regex import Automaton
from millstream.core.regex_syntax import InvalidRegex
from millstream.groups.topics_view import Topics

_MOST_CACHED = 1_000


class Resolver:
    """Which topics an expression matches. Remembers answers: groups of one application ask the same."""

    def __init__(self) -> None:
        self._automata: dict[str, Automaton | None] = {}
        self._answers: dict[str, tuple[int, frozenset[str]]] = {}

    def resolve(self, pattern: str, topics: Topics) -> frozenset[str]:
        """An expression that cannot be read (an older or later broker may have accepted it) matches nothing."""
        version, answer = self._answers.get(pattern, (None, frozenset[str]()))
        if version == topics.version:
            return answer
        if len(self._automata) >= _MOST_CACHED:
            self._automata.clear()
            self._answers.clear()
        if pattern not in self._automata:
            self._automata[pattern] = _automaton(pattern)
        automaton = self._automata[pattern]
        if automaton is not None:
            answer = frozenset(name for name in topics.names() if automaton.matches(name))
        self._answers[pattern] = (topics.version, answer)
        return answer


def _automaton(pattern: str) -> Automaton | None:
    try:
        return Automaton(pattern)
    except InvalidRegex:
        return None

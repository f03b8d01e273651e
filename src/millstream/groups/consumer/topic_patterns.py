"""Resolve the regular expressions of subscriptions to topics (KIP-848)."""

from __future__ import annotations

from millstream.core.regex import Automaton
from millstream.core.regex_syntax import InvalidRegex
from millstream.groups.topics_view import Topics

_MAX_CACHED = 1_000


class Resolver:
    """Resolves and caches regular expressions: the groups of an application use the same ones."""

    def __init__(self) -> None:
        self._automata: dict[str, Automaton | None] = {}
        self._resolved: dict[str, tuple[int, frozenset[str]]] = {}

    def resolve(self, pattern: str, topics: Topics) -> frozenset[str]:
        """Return the matching topics.

        An invalid expression, which an older or later broker may have accepted, matches nothing.
        """
        version, names = self._resolved.get(pattern, (None, frozenset[str]()))
        if version == topics.version:
            return names
        if len(self._automata) >= _MAX_CACHED:
            self._automata.clear()
            self._resolved.clear()
        if pattern not in self._automata:
            self._automata[pattern] = _automaton(pattern)
        automaton = self._automata[pattern]
        if automaton is not None:
            names = frozenset(name for name in topics.names() if automaton.matches(name))
        self._resolved[pattern] = (topics.version, names)
        return names


def _automaton(pattern: str) -> Automaton | None:
    try:
        return Automaton(pattern)
    except InvalidRegex:
        return None

"""Topics by pattern: a name that begins with ``^`` is a regular expression, as in librdkafka.

It is matched at the beginning of a name: ``^orders`` matches orders and orders-archive,
``^orders$`` only the first. Only a pattern that begins with ``^__`` matches internal topics such as
``__consumer_offsets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from millstream.client.errors import ClientError, no_match

MARK = "^"
_INTERNAL = "__"
INTERNAL_PATTERN = MARK + _INTERNAL


def is_pattern(name: str) -> bool:
    """Return whether the name is a pattern."""
    return name.startswith(MARK)


def names_internal(name: str) -> bool:
    """Return whether a name or pattern is one of internal topics."""
    return name.removeprefix(MARK).startswith(_INTERNAL)


class InternalTopics:
    """The internal topics that a subscription reads: only those that it names."""

    def __init__(self, topics: Iterable[str]) -> None:
        """Raise ClientError if a pattern of internal topics is not a regular expression."""
        named = [*filter(names_internal, topics)]
        self._names = {name for name in named if not is_pattern(name)}
        self._patterns = [_compiled(name) for name in named if is_pattern(name)]

    @property
    def none_named(self) -> bool:
        return not self._names and not self._patterns

    def exclude(self, topic: str) -> bool:
        """Return whether the topic is internal and the subscription does not name it."""
        return (
            names_internal(topic)
            and topic not in self._names
            and not any(pattern.match(topic) for pattern in self._patterns)
        )


def for_broker(name: str) -> str:
    """Return a pattern as the broker must get it (KIP-848): it matches whole names.

    The group captures, because librdkafka also compiles patterns as POSIX expressions.
    """
    return f"^({name.removeprefix(MARK)}).*" if is_pattern(name) else name


class TopicSelection:
    """Names and patterns of topics, and the topics that they select."""

    def __init__(self, topics: Iterable[str]) -> None:
        """Raise ClientError if a pattern is not a regular expression."""
        self._names = [*topics]
        self._compiled = {text: _compiled(text) for text in self._names if is_pattern(text)}

    @property
    def has_pattern(self) -> bool:
        return bool(self._compiled)

    def topics(self, known: Iterable[str]) -> list[str]:
        """Return the topics in the order selected; ClientError if a pattern matches none."""
        known = [*known]
        selected: dict[str, None] = {}
        for text in self._names:
            names = self._matching(text, known) if is_pattern(text) else [text]
            if not names:
                raise no_match(text)
            selected |= dict.fromkeys(names)
        return [*selected]

    def appeared(self, known: Iterable[str]) -> list[str]:
        """Return the topics that a pattern matches now, which may be none."""
        known = [*known]
        return [name for text in self._compiled for name in self._matching(text, known)]

    def _matching(self, text: str, known: Iterable[str]) -> list[str]:
        return sorted(
            name
            for name in known
            if self._compiled[text].match(name)
            and (names_internal(text) or not names_internal(name))
        )


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ClientError(
            f"{text!r} is not a regular expression: {error}",
            hint=r"for example '^orders-.*' or '^orders\.eu$'",
        ) from None

"""Topics by pattern: a name that begins with ``^`` is a regular expression, as in librdkafka.

It is compared with the beginning of a name: ``^orders`` finds orders and orders-archive, ``^orders$`` only the first.
Internal topics (``__consumer_offsets``) are found only by a pattern that begins with ``^__``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from millstream.client.errors import ClientError, no_match

MARK = "^"
_INTERNAL = "__"


def is_pattern(name: str) -> bool:
    """Whether this stands for all topics that it matches."""
    return name.startswith(MARK)


class TopicSelection:
    """Names and patterns of topics, and the topics they stand for."""

    def __init__(self, wanted: Iterable[str]) -> None:
        """Raise ClientError where a pattern is not a regular expression."""
        self._wanted = [*wanted]
        self._compiled = {text: _compiled(text) for text in self._wanted if is_pattern(text)}

    @property
    def has_pattern(self) -> bool:
        return bool(self._compiled)

    def topics(self, known: Iterable[str]) -> list[str]:
        """Return the topics in the order of what was asked for; ClientError where a pattern matches none."""
        known = [*known]
        found: dict[str, None] = {}
        for text in self._wanted:
            names = self._matching(text, known) if is_pattern(text) else [text]
            if not names:
                raise no_match(text)
            found |= dict.fromkeys(names)
        return [*found]

    def appeared(self, known: Iterable[str]) -> list[str]:
        """Return the topics that a pattern matches now, which may be none."""
        known = [*known]
        return [name for text in self._compiled for name in self._matching(text, known)]

    def _matching(self, text: str, known: Iterable[str]) -> list[str]:
        internal_too = text.startswith(MARK + _INTERNAL)
        return sorted(
            name
            for name in known
            if self._compiled[text].match(name) and (internal_too or not name.startswith(_INTERNAL))
        )


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ClientError(
            f"{text!r} is not a regular expression: {error}",
            hint=r"for example '^orders-.*' or '^orders\.eu$'",
        ) from None

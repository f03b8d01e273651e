"""Reduces Java stack traces in messages of Py4J and Spark to one sentence.

The sentence has Spark's message and the last ``Caused by``. The frames between them do not help a
user. The wrappers that Spark puts around a message (the id of the query, the number of the task)
are removed as well. These functions are pure.
"""

from __future__ import annotations

import re

_PLAN = "=== Streaming Query ==="
_STACK = re.compile(
    r"\n\s*(?:at [\w.$<>/@-]+\(|\.\.\. \d+ (?:more|common frames omitted)"
    r"|Caused by: |Suppressed: |Driver stacktrace:)"
)
_CAUSED_BY = re.compile(r"\nCaused by: ")
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
# Prefixes of a wrapped message.
_WRAPPERS = tuple(
    re.compile(wrapper, re.S)
    for wrapper in (
        r"An error occurred while calling \S+\.\s*(?::\s*)?",
        r"Query (?:\S+ )?\[id = [^\]]*\] terminated with exception: ",
        r"(?:Job|Task) aborted due to stage failure: ",
        r"Task \d+(?:\.\d+)? in stage [\d.]+ failed \d+ times, most recent failure: ",
        r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)]*\): ",
        r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]\s*",
    )
)
_CLASS = re.compile(r"(?:[a-z][\w$]*\.)+(?:[A-Za-z]\w*\$)*([A-Z]\w*)(?:: |\s*$)", re.S)
# Exceptions whose message is enough without the class.
_PLAIN = frozenset(
    {"SparkException", "SparkRuntimeException", "StreamingQueryException", "RuntimeException", "Exception", "Py4JException"}
)  # fmt: skip


def has_trace(text: str) -> bool:
    """Return whether a text has the frames of a Java exception."""
    return _STACK.search(text) is not None


def sentence(text: str) -> str:
    """Return Spark's message and the last ``Caused by`` of a text, in one line."""
    text = text.split(_PLAN)[0]
    causes = _CAUSED_BY.split(text)[1:]
    return with_cause(_message(text), _message(causes[-1]) if causes else "")


def with_cause(head: str, cause: str) -> str:
    """Return a message and its cause, without repeating text that both contain."""
    if not cause or _without_class(cause) in head:
        return head
    if not head or _bare_class(head):
        return cause
    if _bare_class(cause) and head != cause:
        return f"{head.rstrip('.')} ({cause})"
    return f"{head.rstrip('.')}; caused by {cause}"


def _message(text: str) -> str:
    """Return the message of one exception, without frames and wrappers."""
    text = _STACK.split(text.strip(), maxsplit=1)[0].strip()
    before = None
    while before != text:
        before = text
        for wrapper in _WRAPPERS:
            if match := wrapper.match(text):
                text = text[match.end() :]
        text = _short_class(text)
    return " ".join(_SQL_STATE.sub("", text).split())


def _short_class(text: str) -> str:
    """Shorten ``java.io.IOException: No space`` to ``IOException: No space``."""
    match = _CLASS.match(text)
    if match is None:
        return text
    message = text[match.end() :].strip()
    if not message:
        return match[1]
    return message if match[1] in _PLAIN else f"{match[1]}: {message}"


def _bare_class(text: str) -> bool:
    return re.fullmatch(r"[A-Z]\w*(?:Exception|Error)", text) is not None


def _without_class(text: str) -> str:
    return re.sub(r"^[A-Z]\w*(?:Exception|Error): ", "", text)

"""Recognizes errors of the driver's JVM, which a retry in the same JVM would meet again.

``fault_of`` classifies an exception. ``supervisor`` decides what follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

LOST_WORKERS = 3
"""The JVM is blamed after this many lost workers in a row, because they can have other causes."""

_MAX_DEPTH = 8


class JvmFault(NamedTuple):
    """An error of the JVM."""

    text: str
    fatal: bool = False
    """Whether every further query in this JVM fails, too."""
    after: int = 1
    """The number of consecutive errors of a flow after which the JVM is blamed."""


BROKEN_MAP = JvmFault(
    "Spark's JVM can no longer send tasks: queries that started at the same time corrupted a shared map",
    fatal=True,
)
DEAD_JVM = JvmFault("Spark's JVM has exited", fatal=True)
STOPPED_CONTEXT = JvmFault("the SparkContext of the JVM was stopped", fatal=True)
OUT_OF_MEMORY = JvmFault("Spark's JVM is out of memory; give it more with spark.driver.memory")
CLASS_LOADING = JvmFault("Spark's JVM cannot load a class")
LOST_WORKER = JvmFault("Spark's Python workers exit repeatedly", after=LOST_WORKERS)

# The most certain signs first, because one text can have several.
_SIGNS: tuple[tuple[re.Pattern[str], JvmFault], ...] = (
    (re.compile(r"Illegal size \d+ of collection, expected \d+"), BROKEN_MAP),
    (re.compile(r"java\.lang\.OutOfMemoryError"), OUT_OF_MEMORY),
    (
        re.compile(
            r"java\.lang\.(NoClassDefFoundError|ExceptionInInitializerError|ClassFormatError|VerifyError)"
        ),
        CLASS_LOADING,
    ),
    (re.compile(r"stopped SparkContext|SparkContext (was|has been) shut ?down"), STOPPED_CONTEXT),
    (
        re.compile(
            r"Answer from Java side is empty|while (obtaining|sending) .*communication channel"
        ),
        DEAD_JVM,
    ),
    (
        # A bare EOFException: the JVM read from a process that had exited. A truncated file has a
        # message.
        re.compile(r"Python worker exited unexpectedly|java\.io\.EOFException\s*$", re.MULTILINE),
        LOST_WORKER,
    ),
)
_DEAD_GATEWAY = frozenset({"Py4JNetworkError"})
# The whole message of py4j if the connection ends during a call. Other errors have a trace.
_BROKEN_CALL = re.compile(r"An error occurred while calling \S+\Z")


def fault_of(error: BaseException) -> JvmFault | None:
    """Return the fault behind an error of a query, or None if it is not an error of the JVM."""
    chain = list(_chain(error))
    if any(_is_dead_gateway(cause) for cause in chain):
        return DEAD_JVM
    text = "\n".join(_text(cause) for cause in chain)
    return next((fault for sign, fault in _SIGNS if sign.search(text)), None)


def _is_dead_gateway(error: BaseException) -> bool:
    """Return whether py4j could not reach the JVM, because its socket was refused or closed."""
    name = type(error).__name__
    if name == "Py4JError":
        return _BROKEN_CALL.match(str(error)) is not None
    refused = isinstance(error, ConnectionError) and "py4j" in _module_that_raised(error)
    return refused or name in _DEAD_GATEWAY


def _module_that_raised(error: BaseException) -> str:
    trace = error.__traceback__
    name = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return name


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    for _ in range(_MAX_DEPTH):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _text(error: Any) -> str:
    """Return the message and the stack of an error, with those of its causes in the JVM."""
    parts = [str(error)]
    for _ in range(_MAX_DEPTH):
        parts.append(str(getattr(error, "_stackTrace", None) or ""))
        error = getattr(error, "_cause", None)
        if error is None:
            break
        parts.append(str(error))
    return "\n".join(parts)

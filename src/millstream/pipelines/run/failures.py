"""Explains the failure of a flow in one line: the user's line and the reason, without JVM frames.

``explain`` also decides whether a retry can help. An unknown error may come from a broker that is
down, so it is retried.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from millstream.client.errors import ClientError
from millstream.pipelines.errors import PipelineError, SourceLine, Unavailable
from millstream.pipelines.formats.csv_headers import explain_header
from millstream.pipelines.load import describe, place_in
from millstream.pipelines.run.java_traces import has_trace, sentence, with_cause

MAX_CHARACTERS = 600
KEPT_END = 260
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_CALL_SITE = re.compile(r"was called from\s+(\S+):(\d+)")
_RAISED = re.compile(r"^([\w.]+\.)?([A-Z]\w+): (.*)$")
_OURS = re.compile(r"\bmillstream(?:\.\w+)+\.([A-Z]\w+): (.*)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*")

_ENDED_QUERY = re.compile(r"Query (?:\S+ )?\[id = [^\]]*\] terminated with exception: (?=\S)")
# The end of Spark's sentence if the exception has no message.
_NO_REASON = "terminated with exception:"

FENCED = "another run of this pipeline has fenced this one; let only one of them run"
CHANGED = (
    "the flow has changed and no longer matches its checkpoint",
    "restore the old definition, rename the flow, or delete its checkpoint and use --reset-progress",
)
OTHER_CHECKPOINT = (
    "run it with its former checkpoint (--checkpoint); without it, --reset-progress starts over and "
    "writes duplicates, and a mirror continues after its copies with --resume"
)
# Spark's messages for a checkpoint that belongs to another plan.
_CHECKPOINT_SIGNS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATE_STORE_SCHEMA",
    "STATE_STORE_INVALID",
    "STATE_STORE_PROVIDER_DOES_NOT_SUPPORT",
    "sources in the checkpoint offsets and now there are",
    "STREAMING_QUERY_EVOLUTION_ERROR",
    "Unsafe row schema",
    "CANNOT_LOAD_STATE_STORE.UNEXPECTED",
)
# Spark gives the Python process of a source ten seconds to start.
SLOW_START = "Python worker failed to connect back"
SLOW_START_REASON = "a Python worker did not start within ten seconds: the machine is overloaded"
# By name, because these come from several packages, some of them only as text.
_PERMANENT = frozenset(
    {
        "AnalysisException",
        "ParseException",
        "UnsupportedOperationException",
        "OptionError",
        "DataLoss",
        "ProgressConflict",
        "RowRefused",
        "RecordTooLarge",
        "PipelineError",
    }
)
_FENCED = frozenset({"SinkFenced", "ProducerFenced"})
_PATIENT = frozenset({Unavailable.__name__})
# The sink wraps the error of a failed job in this one.
_WRAPPERS = frozenset({"JobFailed"})
# Python's wrapper of a Java exception. The reason is in its trace.
_JAVA_WRAPPERS = frozenset({"Py4JJavaError"})


class RaisedException(NamedTuple):
    """The exception at the end of a trace."""

    ours: bool
    name: str
    message: str


class Failure(NamedTuple):
    """Why a flow failed.

    ``permanent``: a retry would fail the same way. ``patient``: the flow waits for something that
    is down, so retries are not counted.
    """

    reason: str
    permanent: bool
    place: SourceLine | None = None
    patient: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


def explain(error: BaseException, file: str | None) -> Failure:
    """Return the failure behind an exception of Spark, of a sink, or of the user's function."""
    text = str(error)
    kind = type(error).__name__
    if kind in _WRAPPERS and (inner := error.__cause__ or error.__context__) is not None:
        return explain(inner, file)
    if kind in _FENCED:
        return Failure(f"{FENCED} ({error})", permanent=True)
    if kind == "ProgressConflict" and isinstance(error, ClientError):
        return Failure(f"{error.message}; {OTHER_CHECKPOINT}", permanent=True)
    if isinstance(error, ClientError):
        permanent = isinstance(error, PipelineError) or kind in _PERMANENT
        return Failure(str(error), permanent, patient=isinstance(error, Unavailable))
    if any(sign in text for sign in _CHECKPOINT_SIGNS):
        return Failure(f"{CHANGED[0]} ({_first_sentence(text)}); {CHANGED[1]}", permanent=True)
    if (header := explain_header(error)) is not None:
        return Failure(header, permanent=True)
    if SLOW_START in text:
        return Failure(SLOW_START_REASON, permanent=False, patient=True)
    raised = _raised(text)
    if raised is not None:
        kind = raised.name
    if kind in _FENCED:
        return Failure(f"{FENCED} ({raised.message if raised else text})", permanent=True)
    reason, place = _shorten(_reason(error, text, raised)), _place(error, text, file)
    return Failure(reason, kind in _PERMANENT, place, patient=kind in _PATIENT)


def _place(error: BaseException, text: str, file: str | None) -> SourceLine | None:
    """Return the user's line that created the expression, raised the error, or was called."""
    if file is None:
        return None
    for site in (*_call_sites(error), *_CALL_SITE.findall(text)):
        if site[0] == file:
            return SourceLine(file, int(site[1]))
    frames = [int(line) for name, line in _FRAME.findall(text) if name == file]
    if frames:
        return SourceLine(file, frames[-1])
    return place_in(error, file)


def _call_sites(error: Any) -> list[tuple[str, str]]:
    """Return the places of the DataFrame expressions that an error of Spark is about."""
    sites = []
    try:
        contexts = error.getQueryContext() if hasattr(error, "getQueryContext") else []
        for context in contexts:
            file, _, line = str(context.callSite()).rpartition(":")
            if line.isdigit():
                sites.append((file, line))
    # A SQL context has no call site, and the exception differs between versions.
    except Exception:
        return sites
    return sites


def _raised(text: str) -> RaisedException | None:
    """Return the last exception of the Python trace in a text.

    An exception of ours is found even if its trace was left out (``one_line_errors``).
    """
    text = text.split("=== Streaming Query ===")[0]
    if "Traceback (most recent call last)" not in text:
        ours = _OURS.findall(text)
        return RaisedException(True, *ours[-1]) if ours else None
    for line in reversed(text.splitlines()):
        match = _RAISED.match(line.strip())
        if match and "java" not in line.split(":")[0] and match[2] != "SQLSTATE":
            return RaisedException((match[1] or "").startswith("millstream."), match[2], match[3])
    return None


def _reason(error: BaseException, text: str, raised: RaisedException | None) -> str:
    """Return the Python exception if there is one, else Spark's sentence and the last cause."""
    if raised is not None and raised.name in _JAVA_WRAPPERS:
        return sentence(text[text.rindex(raised.message) :])
    if raised is not None:
        message = _first_sentence(raised.message)
        return message if raised.ours or message != raised.message else f"{raised.name}: {message}"
    if has_trace(text):
        return sentence(text)
    if _CONDITION.match(text.strip()) or hasattr(error, "getCondition"):
        message = _first_sentence(text)
        return (
            _unnamed_reason(error)
            if message.endswith(_NO_REASON)
            else with_cause(message, _last_cause(error))
        )
    return describe(error, "")


def _last_cause(error: BaseException) -> str:
    """Return the message of the innermost Java exception, which PySpark keeps separately."""
    last = None
    cause = getattr(error, "_cause", None)
    while isinstance(cause, BaseException):
        last, cause = cause, getattr(cause, "_cause", None)
    return "" if last is None else sentence(str(last))


def _unnamed_reason(error: BaseException) -> str:
    """Name the class of an exception without a message, which Spark leaves out."""
    cause = str(getattr(error, "_cause", None) or "").strip().splitlines()
    name = cause[0] if cause else "without a reason"
    if "EOFException" in name:
        return f"a Python worker has exited ({name})"
    return f"the query ended ({name})"


def _first_sentence(text: str) -> str:
    """Return Spark's message without its class, query, SQL state and plan."""
    text = _CONDITION.sub("", text.strip(), count=1)
    if match := _ENDED_QUERY.match(text):
        text = _CONDITION.sub("", text[match.end() :], count=1)
    text = re.split(
        r"\s*SQLSTATE: |\n'?[A-Z]\w+ |\n\+- |=== Streaming Query|\n\n|JVM stacktrace|\n\tat ", text
    )[0]
    return _shorten(" ".join(text.split()))


def _shorten(text: str) -> str:
    """Remove the middle.

    The problem is at the beginning of a message, and the remedy at its end.
    """
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS - KEPT_END - 3]} … {text[-KEPT_END:]}"

"""What can go wrong while a batch is written, and how an error of a task is known again on the driver.

A task's exception reaches the driver as text inside Spark's own. Its class name and its sentence stand there on one line, which
is all that ``from_job`` needs to raise the same error again. What none of these classes says is a failure of the job itself.
"""

from __future__ import annotations

import re

from millstream.client.errors import ClientError


class SinkError(ClientError):
    """The sink cannot go on; what it says is meant for the person who runs the query."""


class RowRefused(SinkError):
    """A row that cannot be sent as it is: trying again would change nothing."""


class RecordTooLarge(RowRefused):
    """A record that its topic does not take."""


class TopicMissing(RowRefused):
    """Rows for a topic that does not exist."""


class SinkFenced(SinkError):
    """Another driver has opened this sink: this one may write no more."""


class TransactionTimedOut(SinkError):
    """The broker has ended the transaction because it took too long: the sink has to be opened again."""


class OutcomeUnknown(SinkError):
    """Whether the transaction was committed is not known here; the next start reads it from the progress topic."""


class ProgressConflict(SinkError):
    """What is committed does not fit to the checkpoint: going on would lose or repeat records."""


class NotFirstAttempt(SinkError):
    """Spark runs a writing task again. Only a whole batch may be repeated, under a new epoch."""


class WriteFailed(SinkError):
    """The brokers did not take a batch in time."""


class JobFailed(SinkError):
    """The job failed for a reason of its own: a task died, an executor was lost, a function of the user raised."""


_FROM_TASK: dict[str, type[SinkError]] = {
    one.__name__: one
    for one in (RowRefused, RecordTooLarge, TopicMissing, SinkFenced, NotFirstAttempt, WriteFailed)
}
_LINE = re.compile(rf"{re.escape(__name__)}\.(\w+): (.*)")
_PYTHON_ERROR = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (.*)$", re.MULTILINE)


def from_job(error: Exception) -> SinkError:
    """What a failed job means. Being fenced decides over everything else that was said."""
    text = str(error)
    found = [_FROM_TASK[name](line.strip()) for name, line in _LINE.findall(text) if name in _FROM_TASK]
    for wanted in (SinkFenced, RowRefused):
        for one in found:
            if isinstance(one, wanted):
                return one
    if found:
        return found[0]
    return JobFailed(f"the job that writes the batch failed: {_short(text)}")


def raised_by_user_code(error: Exception) -> bool:
    """A Python function that is not ours raised: running it again on the same rows would do the same."""
    text = str(error)
    return "PythonException" in text and "Traceback" in text and not _LINE.search(text)


def _short(text: str) -> str:
    """The innermost Python error, or the first line."""
    raised = _PYTHON_ERROR.findall(text)
    if raised:
        return f"{raised[-1][0]}: {raised[-1][1]}"
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:500]

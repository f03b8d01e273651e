"""The errors of a sink, and how the driver recognises an error of a task.

A task's exception reaches the driver as text inside Spark's exception. Its class name and its
message are on one line there, from which ``from_job`` raises the same error again. Any other text
is a failure of the job itself.
"""

from __future__ import annotations

import re

from millstream.client.errors import ClientError


class SinkError(ClientError):
    """The sink cannot continue; the message is for the person who runs the query."""


class RowRefused(SinkError):
    """A row that cannot be sent. A retry would not help."""


class RecordTooLarge(RowRefused):
    """A record that is too large for its topic."""


class TopicMissing(RowRefused):
    """A row for a topic that does not exist."""


class SinkFenced(SinkError):
    """Another driver has opened this sink, so this one may not write any more."""


class TransactionTimedOut(SinkError):
    """The broker has aborted a transaction that took too long. The sink has to be opened again."""


class OutcomeUnknown(SinkError):
    """It is not known whether the transaction was committed.

    The next start reads it from the progress topic.
    """


class ProgressConflict(SinkError):
    """The committed progress does not match the checkpoint.

    Continuing would lose or repeat records.
    """


class NotFirstAttempt(SinkError):
    """Spark runs a writing task again. Only a whole batch may be repeated, under a new epoch."""


class WriteFailed(SinkError):
    """The brokers did not accept a batch in time."""


class JobFailed(SinkError):
    """The job failed: a task died, an executor was lost, or a function of the user raised."""


_FROM_TASK: dict[str, type[SinkError]] = {
    error.__name__: error
    for error in (
        RowRefused,
        RecordTooLarge,
        TopicMissing,
        SinkFenced,
        NotFirstAttempt,
        WriteFailed,
    )
}
_LINE = re.compile(rf"{re.escape(__name__)}\.(\w+): (.*)")
_PYTHON_ERROR = re.compile(
    r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (.*)$", re.MULTILINE
)


def from_job(error: Exception) -> SinkError:
    """Return our error for a failed job. Being fenced takes precedence over everything else."""
    text = str(error)
    raised = [
        _FROM_TASK[name](line.strip()) for name, line in _LINE.findall(text) if name in _FROM_TASK
    ]
    for kind in (SinkFenced, RowRefused):
        for task_error in raised:
            if isinstance(task_error, kind):
                return task_error
    if raised:
        return raised[0]
    return JobFailed(f"the job that writes the batch failed: {_short(text)}")


def raised_by_user_code(error: Exception) -> bool:
    """Return whether a user's Python function raised. It would raise again on the same rows."""
    text = str(error)
    return "PythonException" in text and "Traceback" in text and not _LINE.search(text)


def _short(text: str) -> str:
    """Return the innermost Python error, or the first lines."""
    raised = _PYTHON_ERROR.findall(text)
    if raised:
        return f"{raised[-1][0]}: {raised[-1][1]}"
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:500]

"""Explanations of failures, retries, the end of a run, and changed definitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millstream.client.admin.client import Admin
from millstream.client.errors import BrokerUnreachable
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, PipelineError
from millstream.pipelines import topic as to_topic
from millstream.pipelines.checks import check_flows, check_topics
from millstream.pipelines.errors import SourceLine
from millstream.pipelines.frames.builder import Frames
from millstream.pipelines.load import load_pipeline
from millstream.pipelines.run.failures import CHANGED, FENCED, Failure, explain
from millstream.pipelines.run.session import pipeline_session
from millstream.spark.sink.failures import (
    JobFailed,
    ProgressConflict,
    SinkFenced,
    TransactionTimedOut,
)
from millstream.spark.source.data_loss import DataLoss
from millstream.spark.source.offsets import Loss
from support.spark.pipeline_world import Background, create, received, run_once, send

pytestmark = pytest.mark.timeout(600)


def test_unavailable_broker_is_retried() -> None:
    assert explain(BrokerUnreachable("nobody answers"), None) == Failure(
        "nobody answers", permanent=False
    )


def test_checkpoint_mismatch_is_permanent() -> None:
    again = explain(ProgressConflict("batch 3 comes again", hint="reset_progress=True ..."), None)
    assert again.permanent and again.reason.startswith(
        "batch 3 comes again; run it with its former checkpoint"
    )
    assert "--reset-progress" in again.reason and "reset_progress" not in again.reason
    assert explain(PipelineError("no such column", place=SourceLine("a.py", 3)), "a.py").permanent
    changed = explain(
        Exception("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"),
        None,
    )
    assert changed.permanent and changed.reason.startswith(CHANGED[0])


def test_fenced_sink_is_explained_by_another_run() -> None:
    failure = explain(SinkFenced("PRODUCER_FENCED"), None)
    assert failure.reason.startswith(FENCED) and failure.permanent


def test_transaction_timeout_is_retried() -> None:
    failure = explain(TransactionTimedOut("the batch took longer"), None)
    assert failure == Failure("the batch took longer", permanent=False)


def test_failed_job_is_explained_by_the_users_line() -> None:
    trace = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "/x/pyspark/worker.py", line 2000, in main\n'
        '  File "/me/pipe.py", line 12, in inverse\n    return 1 // n\nZeroDivisionError: division by zero\n'
    )
    try:
        try:
            raise RuntimeError(trace)
        except RuntimeError as error:
            raise JobFailed("the job failed") from error
    except JobFailed as error:
        assert (
            str(explain(error, "/me/pipe.py")) == "pipe.py:12: ZeroDivisionError: division by zero"
        )


@pytest.mark.parametrize(
    ("name", "permanent", "patient"),
    [
        ("pipelines.errors.PipelineError", True, False),
        ("pipelines.errors.Unavailable", False, True),
        ("spark.losses.DataLoss", True, False),
        ("client.errors.BrokerUnreachable", False, False),
    ],
)
def test_one_line_error_of_a_source_is_recognized(
    name: str, permanent: bool, patient: bool
) -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when "
        f"Python streaming data source perform latestOffset: millstream.{name}: it is so; do this\n SQLSTATE: 38000"
        "\n=== Streaming Query ===\nplan"
    )
    assert explain(Exception(text), None) == Failure(
        "it is so; do this", permanent, patient=patient
    )


def test_long_spark_messages_are_shortened_to_a_sentence() -> None:
    text = "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== DataFrame ==\nlots of lines"
    assert explain(Exception(text), None).reason == "Division by zero. Use `try_divide`."


FRAMES = """
\tat org.apache.spark.util.SparkClosureCleaner$.clean(SparkClosureCleaner.scala:45)
\tat java.base/java.lang.Thread.run(Thread.java:840)"""
NOT_SERIALIZABLE = (
    f"org.apache.spark.SparkException: Task not serializable{FRAMES}\n"
    f"Caused by: java.io.IOException: unexpected exception type{FRAMES}\n\t... 12 more\n"
    f"Caused by: java.lang.IllegalStateException: Illegal size 5 of collection, expected 6{FRAMES}\n\t... 31 more\n"
)
NOT_SERIALIZABLE_TOLD = "Task not serializable; caused by IllegalStateException: Illegal size 5 of collection, expected 6"
LOST_TASK = (
    "Job aborted due to stage failure: Task 1 in stage 2.0 failed 1 times, most recent failure: "
    "Lost task 1.0 in stage 2.0 (TID 5) (localhost executor driver): "
)
IN_FOREACH_BATCH = (
    "[STREAM_FAILED] Query demo.paid [id = 1-2, runId = 3-4] terminated with exception: "
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
    "Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
    '  File "/x/py4j/clientserver.py", line 644, in _call_proxy\n    raise Py4JJavaError(\n'
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"An error occurred while calling o70.collectToPython.\n: {NOT_SERIALIZABLE}",
            NOT_SERIALIZABLE_TOLD,
        ),
        (
            f"{IN_FOREACH_BATCH}py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n"
            f": {NOT_SERIALIZABLE}\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nplan",
            NOT_SERIALIZABLE_TOLD,
        ),
        (
            f"An error occurred while calling o79.parquet.\n: org.apache.spark.SparkException: {LOST_TASK}"
            f"java.io.IOException: No space left on device{FRAMES}\n\nDriver stacktrace:{FRAMES}\n"
            f"Caused by: java.io.IOException: No space left on device{FRAMES}\n\t... 1 more\n",
            "IOException: No space left on device",
        ),
        (
            f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {LOST_TASK}"
            f"java.lang.reflect.InvocationTargetException{FRAMES}\n"
            f'Caused by: java.lang.NumberFormatException: For input string: "0x"{FRAMES}\n\t... 28 more\n\n'
            "Driver stacktrace: SQLSTATE: XXKST\n=== Streaming Query ===\nplan",
            'NumberFormatException: For input string: "0x"',
        ),
        (
            f"{IN_FOREACH_BATCH}pyspark.errors.exceptions.captured.SparkRuntimeException: "
            "[USER_RAISED_EXCEPTION] boo SQLSTATE: P0001\n SQLSTATE: XXKST\n=== Streaming Query ===\nplan",
            "boo",
        ),
    ],
)
def test_java_trace_is_reduced_to_message_and_last_cause(text: str, reason: str) -> None:
    assert explain(Exception(text), None).reason == reason


def test_cause_of_a_pyspark_error_is_reported() -> None:
    class Captured(Exception):
        _cause: Exception | None = None

        def getCondition(self) -> str:
            return "STREAM_FAILED"

    inner = Captured("java.lang.OutOfMemoryError: Java heap space")
    outer = Captured(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job 3 cancelled SQLSTATE: XXKST"
    )
    outer._cause = Captured("org.apache.spark.SparkException: Job 3 cancelled")
    outer._cause._cause = inner
    assert (
        explain(outer, None).reason
        == "Job 3 cancelled; caused by OutOfMemoryError: Java heap space"
    )


def test_reason_of_a_real_failure_has_no_java_frames(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception) as raised:
        spark.range(1).write.parquet(str(tmp_path / "file" / "below"))
    reason = explain(raised.value, None).reason
    assert (
        reason
        == f"ParentNotDirectoryException: Parent path is not a directory: file:{tmp_path}/file"
    )


def test_hint_about_data_loss_survives_shortening() -> None:
    lost = DataLoss([Loss(TopicPartition("t" * 200, n), "recreated", 5, 0) for n in range(9)])
    text = f"[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python: millstream.spark.source.data_loss.DataLoss: {lost}"
    reason = explain(Exception(text), None).reason
    assert reason.startswith("data loss: ttt") and reason.endswith("start with a new checkpoint")
    assert len(reason) <= 600 and "--on-loss skip" in reason


def test_failed_writer_is_explained_by_its_exception() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source write: Traceback (most recent call last):\n"
        '  File "/x/writer.py", line 3, in write\nmillstream.spark.failures.WriteFailed: the broker refuses it\n'
        "SQLSTATE: 38000"
    )
    assert explain(Exception(text), None).reason == "the broker refuses it"


def test_exception_without_message_is_explained_by_its_cause() -> None:
    class Silent(Exception):
        _cause = "java.io.EOFException"

        def getCondition(self) -> str:
            return "STREAM_FAILED"

    text = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \n=== Streaming Query ===\nplan"
    failure = explain(Silent(text), None)
    assert failure == Failure("a Python worker has exited (java.io.EOFException)", permanent=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipe = 1 +", "pipe.py:1: SyntaxError: invalid syntax"),
        ("\n\nimport nowhere", "pipe.py:3: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "declares no Pipeline; declare one `pipe = Pipeline(NAME)` per file"),
        (
            "from millstream.pipelines import Pipeline\na, b = Pipeline('a'), Pipeline('b')",
            "declares 2 pipelines",
        ),
        (
            "from millstream.pipelines import Pipeline\npipe = Pipeline('a', trigger='soon')",
            "pipe.py:2: 'soon' is not a duration",
        ),
    ],
)
def test_error_in_a_file_names_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(text)
    with pytest.raises(PipelineError) as raised:
        load_pipeline(str(tmp_path / "pipe.py"))
    assert message in str(raised.value)


def test_udf_created_before_spark_starts_is_explained(tmp_path: Path) -> None:
    """In a separate process, because a session may be active here."""
    file = tmp_path / "pipe.py"
    file.write_text(
        'from pyspark.sql import functions as F\n\nupper = F.udf("string")(str.upper)\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "millstream", "pipeline", "check", str(file)],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: pipe.py:3: PySparkRuntimeError")
    assert ran.stderr.endswith("create the udf inside the flow that uses it\n")


def test_file_need_not_end_in_py(tmp_path: Path) -> None:
    (tmp_path / "orders.pipeline").write_text(
        "from millstream.pipelines import Pipeline\npipe = Pipeline('orders')\n"
    )
    assert load_pipeline(str(tmp_path / "orders.pipeline")).name == "orders"


def test_schema_that_spark_rejects_names_its_line(spark: SparkSession) -> None:
    pipeline = Pipeline("alike")
    stream = pipeline.stream("orders", schema="id int, ID int")
    flow = pipeline.sql("copy", "SELECT * FROM orders", to=to_topic("out"))
    with pytest.raises(PipelineError, match="Ambiguous reference to the field") as raised:
        Frames(pipeline_session(spark, pipeline), pipeline).build(flow)
    assert raised.value.place == stream.place


FAILING = """
from pyspark.sql import functions as F
from millstream.pipelines import Pipeline, topic

pipe = Pipeline("failing", retries=1, dead_letters=False)
pipe.stream("numbers", schema="n int")

@F.udf("int")
def inverse(n):
    return 1 // n  # line 10

@pipe.flow(to=topic("inverses"))
def inverses(numbers):
    return numbers.select(inverse("n").alias("x"))

@pipe.flow(to=topic("copies", key="n", partitions=3))
def copies(numbers):
    return numbers
"""


def test_failing_flow_names_its_line_is_retried_and_stops_the_others(
    spark: SparkSession, broker, tmp_path: Path
) -> None:
    own: LocalBroker = broker({"transaction.state.log.num.partitions": 1})
    (tmp_path / "failing.py").write_text(FAILING)
    create(own.bootstrap, "numbers", partitions=1)
    send(own.bootstrap, "numbers", [{"n": 1}, {"n": 0}])
    pipeline = load_pipeline(str(tmp_path / "failing.py"))
    pipeline.bootstrap = own.bootstrap
    with Background(pipeline, spark, tmp_path / "checkpoints") as running:
        assert running.wait() is False
    assert running.states("inverses") == ["running", "retrying", "running", "failed"]
    assert running.states("copies")[-1] == "stopped"
    reasons = {event["reason"] for event in running.events if "reason" in event}
    assert reasons == {"failing.py:10: ZeroDivisionError: integer division or modulo by zero"}
    assert running.run.state == "failed"
    log = running.run.layout.failures.read_text()
    assert log.count(" flow inverses\n") == 2 and "ZeroDivisionError" in log
    assert received(own.bootstrap, "inverses") == []
    with Admin(own.bootstrap) as admin:
        assert len(admin.topics.get("copies").partitions) == 3


def test_changed_inputs_are_rejected_before_the_query_starts(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    first, other, out = (f"{topic_name}-{part}" for part in ("one", "other", "out"))
    create(shared_broker.bootstrap, first, other, partitions=1)
    send(shared_broker.bootstrap, first, [{"n": 1}])

    def declare(*names: str) -> Pipeline:
        pipeline = Pipeline(topic_name, bootstrap=shared_broker.bootstrap, dead_letters=False)
        for name in ("one", "other"):
            pipeline.stream(name, topic=f"{topic_name}-{name}", schema="n int")
        pipeline.sql(
            "flow", " UNION ALL ".join(f"SELECT * FROM {name}" for name in names), to=to_topic(out)
        )
        return pipeline

    run_once(declare("one"), spark, tmp_path)
    with pytest.raises(
        PipelineError, match="the flow has changed and no longer matches its checkpoint"
    ):
        run_once(declare("one", "other"), spark, tmp_path)
    assert received(shared_broker.bootstrap, out) == [{"n": 1}]


CHECKED = """
from pyspark.sql import functions as F
from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("checked")
pipe.stream("orders", schema="id string, at timestamp", topic="{topic}")
pipe.table("customers", schema="id string, country string", topic="{topic}")

@pipe.flow(to=topic("a"))
def wrong_column(orders):
    return orders.filter(F.col("ammount") > 3)  # line 11

@pipe.flow(to=topic("b"))
def no_watermark(orders):
    return orders.groupBy("id").count()

@pipe.flow(to=topic("c", key="idd"))
def wrong_key(orders):
    return orders

@pipe.flow(to=topic("d"), mode="update")
def grows(orders, customers):
    return orders.join(customers, "id").groupBy("country").count()

@pipe.flow(to=topic("e"))
def only_tables(customers):
    return customers

@pipe.flow(to=topic("f"))
def nothing(orders):
    pass

pipe.sql("bad_sql", "SELECT nope FROM orders", to=topic("g"))
"""


def test_check_finds_plans_that_spark_would_reject(
    spark: SparkSession, shared_broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "checked.py").write_text(CHECKED.replace("{topic}", topic))
    pipeline = load_pipeline(str(tmp_path / "checked.py"))
    pipeline.bootstrap = shared_broker.bootstrap
    check = check_flows(pipeline, spark)
    assert spark.streams.active == []
    problems = {problem.place.line: problem for problem in check.problems if problem.place}
    assert not check.ok
    assert "`ammount` cannot be resolved. Did you mean" in problems[11].text
    assert (
        "no_watermark cannot run in append mode" in problems[13].text
        and "watermark" in problems[13].hint
    )
    assert (
        problems[17].text
        == "topic c of flow wrong_key needs the column 'idd', which the flow does not have"
    )
    assert problems[17].hint == "did you mean 'id'?"
    assert problems[21].warning and "state grows without limit" in problems[21].text
    assert "reads only tables" in problems[25].text
    assert "nothing returns NoneType" in problems[29].text
    assert "`nope` cannot be resolved" in problems[33].text
    assert len(check.problems) == 7
    (grows,) = [flow for flow in check.flows if flow.flow.name == "grows"]
    assert grows.schema == [("country", "string"), ("count", "bigint")]
    (warning,) = check_topics(pipeline)
    assert warning.warning and "is not compacted" in warning.text


def test_check_reports_missing_topics_with_the_nearest_name(
    shared_broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = Pipeline("p", bootstrap=shared_broker.bootstrap)
    pipeline.stream("orders", schema="id string", topic=topic[:-1] + "_")
    pipeline.sql("copy", "SELECT * FROM orders", to=to_topic("out"))
    (problem,) = check_topics(pipeline)
    assert "does not exist" in problem.text and problem.hint == f"did you mean {topic!r}?"


def test_check_reports_an_unavailable_broker() -> None:
    pipeline = Pipeline("p", bootstrap="127.0.0.1:1")
    pipeline.stream("orders", schema="id string")
    pipeline.sql("copy", "SELECT * FROM orders", to=to_topic("out"))
    (problem,) = check_topics(pipeline)
    assert "127.0.0.1:1" in problem.text

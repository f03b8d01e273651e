"""The snippets that kafka-python, confluent-kafka and aiokafka publish with their packages run
unchanged, but for the address of the broker.

They are taken from the descriptions of the installed packages, so that a new release brings its
own. Consumers among them never end: they are given records until they have printed one.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import Kafka, broker

TIMEOUT_S = 120.0
# kafka-python's classes look for a broker at localhost:9092 where nothing else is said: the address
# is set there, not in the snippets.
KAFKA_PYTHON = """
import kafka
for kind in (kafka.KafkaProducer, kafka.KafkaConsumer):
    kind.DEFAULT_CONFIG["bootstrap_servers"] = "{bootstrap}"
"""
# Nothing in the snippets waits for the last records.
FLUSH_ALL = """
import gc
for one in gc.get_objects():
    if type(one) is KafkaProducer:
        one.flush()
"""


def snippets(package: str, *, having: str) -> list[str]:
    """The Python in the description of a package that has a certain text in it."""
    metadata = importlib.metadata.metadata(package)
    text = str(metadata.get("Description") or metadata.get_payload())
    fenced = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    indented = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", text, re.M)
    return [one for one in [*fenced, *map(textwrap.dedent, indented)] if having in one]


def one_snippet(package: str, *, having: str) -> str:
    (found,) = snippets(package, having=having)
    return found


def at(bootstrap: str, program: str) -> str:
    return re.sub(r"localhost:\d+|(?<=')mybroker(?=')|(?<=\")mybroker(?=\")", bootstrap, program)


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with broker(process=True) as kafka:
        yield kafka


def run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def printed_by_reader(program: str, kafka: Kafka, topic: str, wanted: str, directory: Path) -> str:
    """What a program that never ends prints, while records come, until it has printed what is
    wanted.
    """
    output = directory / "output"
    with output.open("w") as out:
        reader = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=out, stderr=out)
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while wanted not in output.read_text():
            assert reader.poll() is None and time.monotonic() < deadline_s, output.read_text()
            kafka.produce(topic, [b"hello"])
            time.sleep(0.1)
    finally:
        reader.kill()
        reader.wait()
    return output.read_text()


def test_producers_of_kafka_python(kafka: Kafka) -> None:
    kafka.topic("foobar")
    known = snippets("kafka-python", having="producer")
    assert len(known) >= 8
    known.sort(key=lambda one: "begin_transaction" in one)  # that one's producer sends nothing else
    run(
        KAFKA_PYTHON.format(bootstrap=kafka.bootstrap)
        + at(kafka.bootstrap, "\n".join(known))
        + FLUSH_ALL
    )
    records = kafka.consume("foobar")
    values = [one.value for one in records]
    assert values.count(b"some_message_bytes") == 100
    assert sum(bool(re.fullmatch(rb"msg \d+", one or b"")) for one in values) == 1000
    assert (b"foo", b"bar") in [(one.key, one.value) for one in records]
    assert (("content-encoding", b"base64"),) in [one.headers for one in records]
    assert [one.value for one in kafka.consume("txn_topic")] == [b"yes"]
    assert [one.value for one in kafka.consume("fizzbuzz")] == [b'{"foo": "bar"}']


@pytest.mark.parametrize("number", range(3), ids=["alone", "group", "read_committed"])
def test_consumers_of_kafka_python(number: int, kafka: Kafka, tmp_path: Path) -> None:
    known = [
        one
        for one in snippets("kafka-python", having="for msg in consumer")
        if "KafkaConsumer(" in one
    ]
    known = [one for one in known if "print" in one]
    topic = re.findall(r"'(my_favorite_topic|txn_topic)'", known[number])[0]
    kafka.topic(topic)
    program = KAFKA_PYTHON.format(bootstrap=kafka.bootstrap) + at(kafka.bootstrap, known[number])
    assert "value=b'hello'" in printed_by_reader(program, kafka, topic, "ConsumerRecord(", tmp_path)


def test_the_consumer_of_confluent_kafka(kafka: Kafka, tmp_path: Path) -> None:
    program = at(kafka.bootstrap, one_snippet("confluent-kafka", having="c.subscribe(['mytopic'])"))
    printed = printed_by_reader(program, kafka, "mytopic", "Received message: hello", tmp_path)
    assert "error" not in printed.partition("Received message")[2]


def test_the_asynchronous_producer_of_confluent_kafka(kafka: Kafka) -> None:
    program = one_snippet("confluent-kafka", having='await p.produce("mytopic", value=b"hello")')
    run(at(kafka.bootstrap, program))
    assert b"hello" in [one.value for one in kafka.consume("mytopic")]


def test_the_admin_client_of_confluent_kafka(kafka: Kafka) -> None:
    printed = run(
        at(kafka.bootstrap, one_snippet("confluent-kafka", having="create_topics(new_topics)"))
    )
    assert sorted(printed.splitlines()) == ["Topic topic1 created", "Topic topic2 created"]


def test_aiokafka(kafka: Kafka, tmp_path: Path) -> None:
    run(at(kafka.bootstrap, one_snippet("aiokafka", having="send_and_wait")))
    assert b"Super message" in [one.value for one in kafka.consume("my_topic")]
    kafka.topic("my_other_topic")
    program = at(kafka.bootstrap, one_snippet("aiokafka", having="async for msg in consumer"))
    assert "consumed:  my_topic 0 " in printed_by_reader(
        program, kafka, "my_topic", "consumed:", tmp_path
    )

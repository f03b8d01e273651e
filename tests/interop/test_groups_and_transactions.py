"""Java and Go clients commit and abort transactions, and read as members of groups: classic ones
and those of KIP-848.
"""

from __future__ import annotations

import base64

import pytest

from interop.conftest import Target
from interop.programs import Client, Program
from interop.rows import START_MS, row

COMMITTED = [f"committed-{i}-{n}".encode() for i in (0, 2, 4) for n in range(5)]


def texts(lines: list[dict[str, object]]) -> list[bytes]:
    """The values of the records, in their order."""
    shown = [str(line["value"]) for line in lines if line["op"] == "record"]
    return [base64.b64decode(value.removeprefix("b64:")) for value in shown]


def committed(lines: list[dict[str, object]]) -> dict[object, object]:
    return {line["partition"]: line["offset"] for line in lines if line["op"] == "committed"}


@pytest.mark.parametrize("name", ["java", "go"])
def test_what_was_committed_is_read_and_what_was_aborted_is_not(
    target: Target, topic_name: str, name: str, request: pytest.FixtureRequest
) -> None:
    program: Program = request.getfixturevalue(name)
    librdkafka: Client = request.getfixturevalue("librdkafka")
    topic = target.create_topic(topic_name)
    done = program.run(
        target.bootstrap, "transactions", topic=topic, count=6, config={"transactional.id": topic}
    )
    assert done == [{"op": "transactions", "done": 6}]
    assert (
        texts(librdkafka.consume(target.bootstrap, topic, isolation_level="read_committed"))
        == COMMITTED
    )
    java: Program = request.getfixturevalue("java")
    assert (
        texts(java.consume(target.bootstrap, topic, isolation_level="read_committed")) == COMMITTED
    )
    assert (
        len(texts(java.consume(target.bootstrap, topic, isolation_level="read_uncommitted"))) == 30
    )


@pytest.mark.parametrize(
    ("name", "protocol"), [("java", "classic"), ("java", "consumer"), ("go", "classic")]
)
def test_a_group_goes_on_where_it_committed(
    target: Target, topic_name: str, name: str, protocol: str, request: pytest.FixtureRequest
) -> None:
    program: Program = request.getfixturevalue(name)
    topic = target.create_topic(topic_name, 2)
    config = {"group.id": topic}
    if name == "java":
        config |= {"group.protocol": protocol, "auto.offset.reset": "earliest"}
    for part in range(2):
        values = [b"%d" % number for number in range(part * 10, part * 10 + 10)]
        rows = [
            row(b"k", value, timestamp=START_MS, partition=number % 2)
            for number, value in enumerate(values)
        ]
        program.produce(target.bootstrap, topic, rows)
        lines = program.run(target.bootstrap, "group", topic=topic, count=10, config=config)
        assert sorted(texts(lines)) == sorted(values)
        assert committed(lines) == {0: 5 * (part + 1), 1: 5 * (part + 1)}

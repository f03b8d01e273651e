"""What must not come back, and what must not be taken for something else: deleted topics, damaged
logs, unknown directories.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.local.broker import LocalBroker

BrokerFactory = Callable[..., LocalBroker]


def admin(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create(broker: LocalBroker, *names: str, **config: str) -> None:
    client = admin(broker)  # kept until the answers are there
    for future in client.create_topics([NewTopic(n, 1, 1, config=config) for n in names]).values():
        future.result(30)


def delete(broker: LocalBroker, *names: str) -> None:
    client = admin(broker)
    for future in client.delete_topics(list(names), operation_timeout=30).values():
        future.result(30)


def write(broker: LocalBroker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 30000})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def read(broker: LocalBroker, topic: str) -> list[str]:
    settings = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    # Without a coordinator a last commit would keep close() waiting.
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            consumer.close()
            return values
        values.append(message.value().decode())


def topic_ids(broker: LocalBroker) -> dict[str, str]:
    client = admin(broker)
    names = list(client.list_topics(timeout=30).topics)
    described = client.describe_topics(TopicCollection(names))
    return {name: str(future.result(30).topic_id) for name, future in described.items()}


def test_adopted_topics_without_an_id_get_one_each(broker: BrokerFactory) -> None:
    running = broker()
    create(running, "aaa", "bbb")
    write(running, "aaa", "one")
    write(running, "bbb", "two")
    running.stop()
    (running.data_dir / "millstream.store").unlink()
    for path in running.data_dir.glob("*/partition.metadata"):
        path.unlink()
    running.start()
    ids = topic_ids(running)
    assert set(ids) == {"aaa", "bbb"} and len(set(ids.values())) == 2
    assert (read(running, "aaa"), read(running, "bbb")) == (["one"], ["two"])


def damage_first_segment(directory: Path) -> None:
    log = min(directory.glob("*.log"))
    with log.open("r+b") as file:
        file.seek(os.path.getsize(log) // 2)
        file.write(b"\xff" * 64)
    for index in directory.glob("*.index"):
        index.unlink()


def test_a_topic_made_anew_shows_nothing_of_a_damaged_one(broker: BrokerFactory) -> None:
    running = broker()
    create(running, "t", **{"internal.segment.bytes": "2000"})
    write(running, "t", *(f"old-{n}" * 20 for n in range(200)))
    running.stop()
    damage_first_segment(running.data_dir / "t-0")
    (running.data_dir / ".kafka_cleanshutdown").unlink()
    running.start()
    delete(running, "t")
    create(running, "t")
    write(running, "t", "new")
    assert read(running, "t") == ["new"]
    running.restart()
    assert read(running, "t") == ["new"]


def test_a_topic_deleted_while_its_directory_was_away_stays_deleted(
    broker: BrokerFactory, tmp_path: Path
) -> None:
    first, second = tmp_path / "d1", tmp_path / "d2"
    running = broker({"log.dirs": f"{first},{second}"})
    create(running, "here", "there")
    for topic in ("here", "there"):
        write(running, topic, "record")
    away = "there" if (second / "there-0").exists() else "here"
    running.stop()
    shutil.move(second, tmp_path / "kept")
    second.write_text("not a directory")
    running.start()
    delete(running, away)
    running.stop()
    second.unlink()
    shutil.move(tmp_path / "kept", second)
    running.start()
    assert away not in admin(running).list_topics(timeout=30).topics


def test_several_clients_may_delete_the_same_topics(broker: BrokerFactory) -> None:
    running = broker()
    names = [f"r{n}" for n in range(20)]
    create(running, *names)
    clients = [admin(running) for _ in range(3)]
    futures = [client.delete_topics(names, operation_timeout=30) for client in clients]
    outcomes = [future.exception(30) for one in futures for future in one.values()]
    assert {error.args[0].name() for error in outcomes if error is not None} <= {
        "UNKNOWN_TOPIC_OR_PART"
    }
    assert sum(error is None for error in outcomes) == len(names)
    assert "Traceback" not in running.output()

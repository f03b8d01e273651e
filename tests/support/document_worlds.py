"""What is there before a section of a document begins: the topics, groups and records that its text
takes for granted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import TopicPartition

from millstream import Admin, Producer
from millstream.client.errors import BrokerUnreachable
from millstream.core.types import TopicPartition as Place
from millstream.testing import cluster
from millstream.testing.waiting import wait_until
from support.doc_session import Session
from support.documents import ROOT

World = dict[str, Callable[[Session], None]]


def config_file(session: Session) -> None:
    (session.directory / "server.properties").write_text("num.partitions=2\n")


def three_brokers(session: Session) -> None:
    kafka = session.use(session.enter(cluster(3)))
    kafka.topic("orders", 4)
    kafka.wait_in_sync("orders", 3)


def one_of_three_is_down(session: Session) -> None:
    kafka = session.use(session.enter(cluster(3)))
    kafka.topic("orders", 4)
    kafka.wait_in_sync("orders", 3)
    kafka.brokers[1].kill()
    session.use(kafka)


def kept_for_a_day(session: Session) -> None:
    """On a broker with no settings of its own, which would be shown too."""
    session.serve("millstream serve")
    with Admin(session.bootstrap) as admin:
        admin.topics.create("orders", partitions=3, configs={"retention.ms": "86400000"})


def a_group_that_is_behind(session: Session) -> None:
    """Ten records in one partition, of which the first three are deleted and five are read; four in
    the other.
    """
    kafka = session.kafka
    kafka.topic("orders", 2)
    with Producer(kafka.bootstrap) as producer:
        for partition, count in ((0, 10), (1, 4)):
            for _ in range(count):
                producer.send("orders", b"x", partition=partition)
    kafka.admin.offsets.delete_records({Place("orders", 0): 3})
    reader = BareConsumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "billing",
            "client.id": "reader",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe(["orders"])
    while not reader.assignment():
        reader.poll(0.1)
    places = [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 4)]
    reader.commit(offsets=places, asynchronous=False)
    session.on["# ... its consumer is stopped ..."] = reader.close
    session.finally_(reader.close)


def an_open_transaction(session: Session) -> None:
    kafka = session.kafka
    kafka.topic("invoices")
    producer = kafka.producer(transactional_id="billing")
    producer.transaction().__enter__()  # and never ended: the command does that
    producer.send("invoices", b"1")
    producer.flush()
    time.sleep(1.5)  # its age is shown in seconds


def dead_letters(session: Session) -> None:
    kafka = session.kafka
    kafka.topic("orders", 2)
    kafka.topic("orders.dlq", 2)
    letters = [
        (1, 17, b"oops", "not JSON: Expecting value at position 0: oops"),
        (0, 23, b'{"amount":1}', "field 'id' is missing, and it is NOT NULL"),
    ]
    with Producer(kafka.bootstrap) as producer:
        for partition, offset, value, reason in letters:
            origin = {
                "topic": "orders",
                "partition": partition,
                "offset": offset,
                "pipeline": "shop",
            }
            told = origin | {"reason": reason, "timestamp": int(time.time() * 1000)}
            headers = [(f"dlq.{name}", str(text).encode()) for name, text in told.items()]
            producer.send("orders.dlq", value, partition=0, headers=headers)
            producer.flush()


def four_partitions(session: Session) -> None:
    session.kafka.topic("orders", 4)


def orders_in_json(session: Session) -> None:
    """Topics with the names of the pipeline on that page."""
    kafka = session.kafka
    kafka.topic("customers", cleanup_policy="compact")
    order = {"id": "1", "customer": "ada", "amount": "20000.00", "at": "2026-03-01T12:00:00Z"}
    kafka.produce("orders", [json.dumps(order)])
    kafka.produce("customers", [("ada", json.dumps({"customer": "ada", "country": "UK"}))])


def some_orders(session: Session) -> None:
    session.kafka.produce("orders", [("ada", b'{"id":"1","amount":2.50}'), ("grace", b"oops")])
    session.kafka.topic("counts")


def a_frame_to_write(session: Session) -> None:
    some_orders(session)
    from millstream.spark.session import session as spark_session

    session.module.__dict__["df"] = spark_session().createDataFrame(
        [("k", "v")], "key string, value string"
    )


def a_session_of_spark(session: Session) -> None:
    some_orders(session)
    from millstream.spark.session import session as spark_session

    session.module.__dict__["spark"] = spark_session()


def the_examples(session: Session) -> None:
    (session.directory / "examples").symlink_to(ROOT / "examples")
    for name in ("orders", "payments", "customers"):
        session.kafka.topic(name)


def somebody_dies(session: Session) -> None:
    """Instead of a time that may be too short: until nobody is led by the broker that is gone, and
    it is in sync nowhere.
    """

    def is_missed() -> bool:
        try:
            with Admin(session.bootstrap) as admin:
                (orders,) = admin.topics.describe(["orders"])
        except BrokerUnreachable:  # the controller was killed, and its successor is not known yet
            return False
        return all(one.leader in one.isr and 1 not in one.isr for one in orders.partitions)

    session.on["sleep 8      # a broker that is silent for six seconds counts as dead"] = lambda: (
        wait_until(is_missed, "broker 1 is missed", 90.0)
    )


README: World = {"Use it": config_file, "Pipelines": the_examples}
COMMAND_LINE: World = {
    "serve, demo, version": config_file,
    "migrate, reassign, elect-leaders": three_brokers,
    "configs": kept_for_a_day,
    "groups": a_group_that_is_behind,
    "transactions": an_open_transaction,
    "dlq": dead_letters,
    "produce": four_partitions,
    "perf": four_partitions,
    "doctor": one_of_three_is_down,
}
TUTORIAL: World = {"A cluster": somebody_dies}
CLUSTER: World = {"Try one": somebody_dies, "Move partitions": three_brokers}
SPARK: World = {"": some_orders}
SPARK_SINK: World = {"A stream": some_orders, "A DataFrame": a_frame_to_write}
DEAD_LETTERS: World = {"Formats": a_session_of_spark, "Dead letters": dead_letters}
PIPELINES: World = {"": orders_in_json}

"""A broker as a child process: ready, killed, restarted on the same port and data, stopped, and
what it says on failure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.client import Admin, BrokerUnreachable, consume, produce
from millstream.local.broker import BrokerFailed, LocalBroker


def test_data_and_port_survive_kill_and_stop(broker):
    running = broker()
    port = running.port
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders", partitions=1)
    produce(running.bootstrap, "orders", ["a", "b"])

    first = running.pid
    running.restart(kill=True)
    assert (running.port, running.running) == (port, True)
    assert running.pid != first
    assert [record.value for record in consume(running.bootstrap, "orders")] == [b"a", b"b"]

    assert running.stop() == 0
    with pytest.raises(BrokerUnreachable):
        produce(running.bootstrap, "orders", ["c"])
    running.restart(settings={"num.partitions": 7})
    assert [record.value for record in consume(running.bootstrap, "orders")] == [b"a", b"b"]
    with Admin(running.bootstrap) as admin:
        admin.topics.create("seven")
        assert len(admin.topics.get("seven").partitions) == 7


def test_a_broker_that_cannot_start_is_told_with_its_words(tmp_path: Path):
    broker = LocalBroker(tmp_path, {"log.retention.hourz": 3})
    with pytest.raises(BrokerFailed) as caught:
        broker.start()
    assert "exited with code 1 before it was ready" in str(caught.value)
    assert "log.retention.hourz" in str(caught.value) and "log.retention.hours" in str(caught.value)
    assert not broker.running


def test_two_brokers_do_not_share_a_directory(broker, tmp_path: Path):
    running = broker()
    with pytest.raises(BrokerFailed) as caught:
        LocalBroker(tmp_path / "second", {"log.dirs": running.data_dir}).start()
    assert "Traceback" not in str(caught.value)
    assert running.running

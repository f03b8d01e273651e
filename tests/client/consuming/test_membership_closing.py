"""Members of a group that close while a rebalance is pending.

librdkafka serves such a rebalance while it shuts down, and may hang for ever in it (issue 4884).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from millstream.client import Admin, Consumer
from millstream.client.consuming import membership
from millstream.client.consuming.membership import Membership
from millstream.client.library import KafkaConsumer, close_member
from millstream.testing.waiting import wait_until

WORKER = Path(__file__).parents[2] / "support" / "client" / "closing_members.py"
HUNG_S = 300.0
PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    "cooperative": {},
    "eager": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def admin(quick_broker) -> Iterator[Admin]:
    with Admin(quick_broker.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=2)
    return topic_name


class WatchedConsumer(KafkaConsumer):
    """A consumer that knows whether ``close`` is running."""

    closing = False

    def close(self) -> None:
        self.closing = True
        super().close()


@pytest.fixture
def served_in_close(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for every rebalance whether it was served inside librdkafka's ``close``."""
    served: list[bool] = []

    def watched(callback: Callable[..., None]) -> Callable[..., None]:
        def call(self: Membership, client: WatchedConsumer, partitions: Any) -> None:
            served.append(client.closing)
            callback(self, client, partitions)

        return call

    monkeypatch.setattr(membership, "KafkaConsumer", WatchedConsumer)
    monkeypatch.setattr(Membership, "_on_assign", watched(Membership._on_assign))
    monkeypatch.setattr(Membership, "_on_revoke", watched(Membership._on_revoke))
    return served


def assigned_partitions(admin: Admin, group: str) -> int:
    described = admin.groups.find(group)
    return sum(len(member.assignment) for member in described.members) if described else 0


def member_count(admin: Admin, group: str) -> int:
    described = admin.groups.find(group)
    return len(described.members) if described else 0


@pytest.mark.parametrize("options", PROTOCOLS.values(), ids=PROTOCOLS)
def test_pending_assignment_is_served_before_close(
    admin: Admin, topic: str, options: Mapping[str, str], served_in_close: list[bool]
):
    with Consumer(admin.connection.bootstrap, topic, group=topic, options=options):
        wait_until(lambda: assigned_partitions(admin, topic) == 2, "the assignment")
        time.sleep(0.1)  # the answer with the assignment is on its way to the member
    # librdkafka hangs if it serves an assignment inside close(); none was left for it.
    assert True not in served_in_close
    wait_until(lambda: member_count(admin, topic) == 0, "the member to leave")


@pytest.mark.parametrize("options", PROTOCOLS.values(), ids=PROTOCOLS)
def test_members_that_close_while_they_join_leave_the_group(
    admin: Admin, topic: str, options: Mapping[str, str]
):
    for pause_ms in range(0, 40, 4):
        with Consumer(admin.connection.bootstrap, topic, group=topic, options=options):
            time.sleep(pause_ms / 1000)
    wait_until(lambda: member_count(admin, topic) == 0, "the members to leave")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_close_does_not_hang_with_a_pending_assignment(admin: Admin, topic: str, assignor: str):
    command = [sys.executable, str(WORKER), admin.connection.bootstrap, topic, assignor]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HUNG_S)
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["closed", "11"])


def test_static_member_stays_in_the_group_when_it_closes(admin: Admin, topic: str):
    options = {"group.instance.id": "first"}
    with Consumer(admin.connection.bootstrap, topic, group=topic, options=options):
        wait_until(lambda: assigned_partitions(admin, topic) == 2, "the assignment")
    assert assigned_partitions(admin, topic) == 2


def test_member_can_be_closed_twice(admin: Admin):
    client = ConfluentConsumer(
        {"bootstrap.servers": admin.connection.bootstrap, "group.id": "twice"}
    )
    close_member(client)
    close_member(client)

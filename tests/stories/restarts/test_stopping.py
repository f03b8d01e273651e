"""Stopping a broker: what it leads is handed over first, unless the operator wants none of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.coordination import SessionState
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination
from support.clusters import InProcessCluster
from support.in_process import InProcessBroker


@pytest.mark.parametrize("enabled", [True, False])
def test_leadership_is_handed_over_if_that_is_wanted(tmp_path: Path, enabled: bool) -> None:
    asked = []

    async def hand_over() -> None:
        asked.append(True)

    settings = {"log.dirs": tmp_path / "data", "controlled.shutdown.enable": str(enabled).lower()}
    with InProcessBroker(settings) as broker:
        broker.broker.parts.member.hand_over = hand_over  # type: ignore[method-assign]
    assert bool(asked) is enabled


@pytest.mark.parametrize("controller_answers", [True, False])
def test_without_zookeeper_it_is_the_controller_that_is_waited_for_and_only_while_it_answers(
    in_process_cluster: Callable[..., InProcessCluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    controller_answers: bool,
) -> None:
    with in_process_cluster(2) as cluster:
        cluster.create_topic("orders", partitions=4, replicas=2)
        (node,) = [
            n for n, one in enumerate(cluster.brokers) if not one.broker.parts.member.state.active
        ]
        member = cluster.brokers[node].broker.parts.member
        monkeypatch.setattr(ZooKeeperCoordination, "session", SessionState.SUSPENDED)
        if not controller_answers:

            async def silent() -> None:
                raise ApiError(ErrorCode.NOT_CONTROLLER)

            monkeypatch.setattr(member.follower, "_step", silent)
        begun_s = time.monotonic()
        cluster.brokers[node].stop()
        took_s = time.monotonic() - begun_s
        monkeypatch.undo()
        assert ("stopping without handing over: neither" in caplog.text) is not controller_answers
        assert took_s < 10  # not the 15 s that a controller is given
        if controller_answers:
            assert {cluster.leader("orders", index) for index in range(4)} == {1 - node}

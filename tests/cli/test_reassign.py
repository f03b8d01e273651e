"""``millstream reassign``: what it says when a command gets no further than its first half. The
rest is in tests/stories/reassignment/test_moving_by_hand.py.
"""

from __future__ import annotations

from typing import Any, Self

import pytest

from millstream.cli import reassign
from millstream.client.admin.reassignments import Moving
from millstream.client.errors import BrokerUnreachable
from millstream.core.types import TopicPartition


class HalfWay:
    """A cluster that calls moves off and then answers nobody any more; the admin of it and its
    reassignments.
    """

    def __init__(self) -> None:
        self.reassignments = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def moving(self) -> list[Moving]:
        return [Moving(TopicPartition("orders", 0), (2, 1, 0), (2,), (0,))]

    def start(self, wanted: Any) -> dict[TopicPartition, Any]:
        return {}

    def unthrottle_moved(self, topics: Any) -> bool:
        raise BrokerUnreachable("no answer")


def test_moves_that_were_called_off_are_told_even_if_the_throttle_cannot_be_lifted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reassign, "_admin", lambda bootstrap, timeout_s: HalfWay())
    with pytest.raises(BrokerUnreachable):
        reassign.cancel()
    called_off, left = capsys.readouterr().err.splitlines()
    assert called_off == "cancelled 1 of 1 move"
    assert "remove it with `millstream reassign unthrottle`" in left

"""Stopping a broker: what it leads is handed over first, unless the operator wants none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.in_process import InProcessBroker


@pytest.mark.parametrize("enabled", [True, False])
def test_leadership_is_handed_over_if_that_is_wanted(tmp_path: Path, enabled: bool) -> None:
    asked = []

    async def hand_over() -> None:
        asked.append(True)

    settings = {"log.dirs": tmp_path / "data", "controlled.shutdown.enable": str(enabled).lower()}
    with InProcessBroker(settings) as broker:
        broker.broker.member.hand_over = hand_over  # type: ignore[method-assign]
    assert bool(asked) is enabled

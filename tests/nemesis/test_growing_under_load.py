"""A fourth broker comes, takes a third of the partitions, and goes again; then every broker
restarts in turn. All under full load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nemesis.growing import Growing
from support.zookeeper import skip_without_zookeeper


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_while_a_cluster_grows_and_shrinks_under_load(tmp_path: Path) -> None:
    skip_without_zookeeper()
    growing = Growing(tmp_path, partitions=12, padding=1000, settle_s=3.0, throttle=0)
    assert growing.run() == []
    growing.tell()
    assert growing.acknowledged > 10_000

"""`metadata.log.dir` is a directory of its own: it has one user at a time, and is there after a
power cut.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.app import StartError
from millstream.sim.world.disk import SimDisk
from millstream.testing.coordination import SharedTree
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic


@pytest.fixture
def apart(tmp_path: Path) -> dict[str, Path]:
    return {"log.dirs": tmp_path / "data", "metadata.log.dir": tmp_path / "meta"}


def test_two_brokers_do_not_share_it(tmp_path: Path, apart: dict[str, Path]):
    other = apart | {"log.dirs": tmp_path / "other"}
    refused = pytest.raises(StartError, match=r"metadata directory .*meta is in use")
    with InProcessBroker(apart), refused, InProcessBroker(other):
        pass
    with InProcessBroker(apart):
        pass


def test_empty_directory_is_refused_if_metadata_knows_another(
    tmp_path: Path, apart: dict[str, Path]
):
    """A disk that is not mounted: the metadata directory is on another one."""
    other = tmp_path / "other"
    with InProcessBroker(apart) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
    with pytest.raises(StartError, match=r"other is empty, .* is missing: is its disk mounted"):
        InProcessBroker(apart | {"log.dirs": other}).start()
    (other / "accept-data-loss").touch()
    with InProcessBroker(apart | {"log.dirs": other}):
        pass
    assert not (other / "accept-data-loss").exists()


def test_a_killed_broker_starts_again_on_it(apart: dict[str, Path]):
    broker = InProcessBroker(apart)
    broker.start()
    broker.die()
    broker.start()
    broker.stop()


def test_a_link_to_the_data_is_no_second_directory(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with InProcessBroker({"log.dirs": tmp_path / "data", "metadata.log.dir": tmp_path / "link"}):
        pass


def test_brokers_of_a_cluster_may_have_the_same_setting(tmp_path: Path, apart: dict[str, Path]):
    """They keep nothing there."""
    tree = SharedTree()
    first, second = (
        InProcessBroker(
            apart | {"log.dirs": tmp_path / node, "node.id": node}, coordination=tree.open
        )
        for node in ("1", "2")
    )
    with first, second:
        assert not apart["metadata.log.dir"].exists()


def test_a_power_cut_after_its_making_does_not_take_it_away():
    for seed in range(8):
        disk = SimDisk(seed)
        settings = {"log.dirs": "/data", "metadata.log.dir": "/meta"}
        with InProcessBroker(settings, files=disk) as broker, RawClient(broker.bootstrap) as client:
            topic_id = create_topic(client, "a", retention_ms=5)
        disk.crash()
        with InProcessBroker(settings, files=disk) as broker:
            assert broker.run(lambda: broker.broker.image.topics["a"].topic_id) == topic_id
            assert broker.run(lambda: broker.broker.image.topic_configs["a"]) == {
                "retention.ms": "5"
            }

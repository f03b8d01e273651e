"""``cluster.json``: what is wrong with one is told in words, and a cluster that runs does not need
it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.cluster import LocalCluster
from millstream.local.cluster_file import ClusterFile, Entry, State


def contents(**changes: Any) -> str:
    entry = {"node_id": 0, "host": "127.0.0.1", "port": 9092}
    return json.dumps(asdict(ClusterFile()) | {"brokers": [entry]} | changes)


WRONG = [
    ('{"half', "it is not JSON: "),
    ("[]", "it is not a JSON object"),
    ("{}", "it has no 'zookeeper_connect'"),
    (contents(brokers={}), "it has an invalid 'brokers': {}"),
    (contents(port="9092"), "it has an invalid 'port': '9092'"),
    (contents(brokers=[3]), "entry 1 of 'brokers' is not a JSON object"),
    (contents(zookeepers=[{"node_id": 1, "host": "a"}]), "entry 1 of 'zookeepers' has no 'port'"),
    (
        contents(brokers=[{"node_id": 0, "host": "a", "port": 1, "state": "ill"}]),
        "entry 1 of 'brokers' has the unknown state 'ill'",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_what_is_wrong_with_it_is_told_in_words(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / cluster_file.FILE
    path.write_text(text)
    with pytest.raises(ClientError) as raised:
        cluster_file.read(tmp_path)
    assert raised.value.message.startswith(f"cannot read {path}: {complaint}")
    assert raised.value.hint.startswith("repair it, or move it away")


class World:
    """A cluster without processes, and what it remarks."""

    def __init__(self, directory: Path) -> None:
        broker = Entry(0, "127.0.0.1", 9092, state=State.STOPPED)
        self.remarks: list[str] = []
        self.cluster = LocalCluster(
            directory, ClusterFile(brokers=[broker]), {}, lambda part: None, self.remarks.append
        )
        self.file = directory / cluster_file.FILE
        self.cluster._save()


@pytest.mark.parametrize("text", [text for text, _ in WRONG])
def test_a_cluster_that_runs_writes_it_anew_and_goes_on(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    good = world.file.read_text()
    for times in (1, 2):  # told every time that somebody breaks it
        world.file.write_text(text)
        for _ in range(3):
            world.cluster.poll()
        assert world.file.read_text() == good and len(world.remarks) == times
    assert world.remarks[0].startswith(f"cannot read {world.file}: ")
    assert world.remarks[0].endswith("; it is rewritten, and the cluster continues")
    world.file.write_text(text)
    world.cluster.stop()
    world.cluster.kill()
    assert world.file.read_text() == good


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.file.read_text()
    world.file.unlink()
    world.file.mkdir()
    for _ in range(3):
        world.cluster.poll()
    reading, writing = world.remarks
    assert reading.startswith(f"cannot read {world.file}: Is a directory; ")
    assert writing == (
        f"cannot write {world.file}: Is a directory; the cluster continues, but --add, --start, --stop and --remove do not work"
    )
    world.file.rmdir()
    world.cluster.poll()
    assert world.file.read_text() == good and len(world.remarks) == 2

"""What ``millstream up`` says where something that it needs is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from millstream.cli.app import run
from millstream.cli.up import needs
from millstream.client.errors import ClientError
from millstream.client.java import NoJava
from millstream.local.zookeeper_jars import NoZooKeeper


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch):
    """Take away kazoo, the jars of ZooKeeper, or Java."""

    def fail(error: ClientError):
        def raise_it(*_arguments: object) -> None:
            raise error

        return raise_it

    def hide(*things: str) -> None:
        real = importlib.util.find_spec
        without = {"kazoo"} & {*things}
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in without else real(name)
        )
        no_jars = fail(NoZooKeeper("no ZooKeeper server was found", hint="install one"))
        no_java = fail(NoJava("ZooKeeper needs Java 17 or later", hint="install one"))
        monkeypatch.setattr(needs, "find_jars", no_jars if "jars" in things else list)
        monkeypatch.setattr(needs, "find_java", no_java if "java" in things else str)

    return hide


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("kazoo",), r'need the package kazoo, .*; pip install "millstream\[cluster\]"'),
        (("jars",), "no ZooKeeper server was found; install one"),
        (("java",), "ZooKeeper needs Java 17 or later; install one"),
        (
            ("kazoo", "jars"),
            r'kazoo, .* no ZooKeeper server was found; `pip install "millstream\[cluster,spark\]"`',
        ),
        (
            ("kazoo", "java"),
            r'kazoo, .* needs Java 17 or later; `pip install "millstream\[cluster,spark\]"`',
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_all_that_is_missing_is_named_at_once(hide, missing: tuple[str, ...], said: str):
    hide(*missing)
    with pytest.raises(ClientError, match=said):
        needs.check_installed(own_zookeeper=True)


def test_zookeeper_elsewhere_needs_no_server_here(hide):
    hide("jars", "java")
    needs.check_installed(own_zookeeper=False)


def test_nothing_is_started_where_kazoo_is_missing(
    hide, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    hide("kazoo", "jars")
    assert (
        run(["up", "--data", str(tmp_path / "cluster"), "--port", "0", "--zookeeper-port", "0"])
        == 1
    )
    assert 'pip install "millstream[cluster,spark]"' in capsys.readouterr().err
    assert not (tmp_path / "cluster" / "zookeeper-1").exists()

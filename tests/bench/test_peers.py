"""The choice of peers and scenarios, the source of Apache Kafka, and peers derived from others."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.__main__ import arguments, choose_peers, choose_scenarios
from bench.model import BadDeclaration, Scenario, load_peers, load_scenarios
from bench.running import missing

from bench import fetch, kafka_cluster

ROOT = Path(__file__).parents[2]


def chosen(*words: str) -> list[Scenario]:
    return choose_scenarios({s.name: s for s in load_scenarios()}, arguments(words), load_peers())


def peers_of(*words: str) -> list[str]:
    able, absent = choose_peers(load_peers(), arguments(words), chosen(*words))
    return [*(peer.name for peer in able), *absent]


def test_slow_scenarios_run_on_request() -> None:
    usual, every = [s.name for s in chosen()], [s.name for s in chosen("--all")]
    assert "produce-100b" in usual and "recovery-10gb" not in usual
    assert set(usual) < set(every) == {s.name for s in load_scenarios()}
    assert [s.name for s in chosen("--only", "recovery-10gb,start")] == ["recovery-10gb", "start"]


def test_requested_rounds_apply_to_every_scenario() -> None:
    assert [s.rounds for s in chosen("--only", "recovery-10gb")] == [1]
    assert [s.rounds for s in chosen("--only", "recovery-10gb", "--rounds", "3")] == [None]


def test_against_selects_scenarios_with_a_target_versus_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_LIBS", str(tmp_path))
    words = ("--against", "kafka-cluster")
    assert {s.subject for s in chosen(*words)} == {"cluster"}
    assert set(peers_of(*words)) == {"cluster", "kafka-cluster"}
    assert "recovery-10gb" in [s.name for s in chosen("--against", "kafka")]
    assert {s.name for s in chosen("--against", "redis")} == set(load_peers()["redis"].scenarios)
    with pytest.raises(BadDeclaration, match="unknown peer kafak"):
        peers_of("--against", "kafak")


def test_jars_come_from_the_given_folder_or_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_LIBS", str(tmp_path))
    assert (
        missing({"fetched": ("kafka",)})
        == "no jars of Apache Kafka in the folder that KAFKA_LIBS names"
    )
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    assert missing({"fetched": ("kafka",)}) is None
    assert fetch.words() == {"KAFKA_LIBS": str(tmp_path)}


def test_apache_kafka_is_missing_without_maven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_LIBS", raising=False)
    monkeypatch.setenv("MILLSTREAM_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no program mvn" in (fetch.obtain("kafka") or "")


def test_jars_copied_by_maven_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program instead of Maven fills the folder once, and fails when it is called again."""
    maven = tmp_path / "mvn"
    maven.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\n"
        "place = [w for w in sys.argv if w.startswith('-DoutputDirectory=')][0].partition('=')[2]\n"
        "if pathlib.Path(__file__).with_name('called').exists(): sys.exit('called twice')\n"
        "pathlib.Path(__file__).with_name('called').touch()\n"
        "(pathlib.Path(place) / 'kafka_2.13-0.jar').touch()\n"
    )
    maven.chmod(0o755)
    monkeypatch.delenv("KAFKA_LIBS", raising=False)
    monkeypatch.setenv("MILLSTREAM_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [fetch.obtain("kafka"), fetch.obtain("kafka")] == [None, None]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        f"kafka-{fetch.kafka_version()}"
    ]
    (tmp_path / "cache" / f"kafka-{fetch.kafka_version()}" / "kafka_2.13-0.jar").unlink()
    assert "called twice" in (fetch.obtain("kafka") or "")


def test_bench_and_interop_use_the_same_version_of_apache_kafka() -> None:
    other = (ROOT / "tests" / "interop" / "java" / "pom.xml").read_text()
    assert f"<kafka.version>{fetch.kafka_version()}<" in other


def test_peer_like_another_declares_only_differences() -> None:
    peers = load_peers()
    small, usual = peers["kafka-small"], peers["kafka"]
    assert small.command == usual.command and small.files == usual.files
    assert (small.words["heap"], usual.words["heap"]) == ("256m", "1G")


def test_kafka_cluster_nodes_know_each_other_and_run_like_one_node(tmp_path: Path) -> None:
    text = kafka_cluster.server_properties(2, [1, 2, 3, 11, 12, 13], tmp_path)
    assert "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12\n" in text
    assert "controller.quorum.voters=1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13\n" in text
    command = kafka_cluster.java("libs", tmp_path / "node.properties")
    assert command[:3] == ["java", "-Xms1G", "-Xmx1G"]
    assert command[-4:] == ["-cp", "libs/*", "kafka.Kafka", str(tmp_path / "node.properties")]


def test_fetching_needs_a_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.fetch"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "usage: python -m bench.fetch kafka\n")

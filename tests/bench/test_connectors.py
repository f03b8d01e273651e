"""Small runs of the connector scenarios: ours always, Spark's own if Maven can fetch its jars."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.__main__ import Runner
from bench.measures import Reading, all_measures
from bench.model import load_scenarios
from bench.results import Outcome, Run

from bench import jars, report
from support.bench.small_scenarios import tiny

pytest.importorskip("pyspark")

TINY = {"rows": 400, "batch_rows": 100, "turns": 1}


def scenarios() -> list[str]:
    return [scenario.name for scenario in load_scenarios() if scenario.measure == "connector"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", scenarios())
def test_both_sides_are_measured_or_the_missing_one_is_named(
    runner_of: Callable[[str], Runner], name: str
) -> None:
    scenario = tiny(name, TINY)
    outcome = runner_of("millstream").scenario(scenario, 1, "")
    # One scenario writes to PostgreSQL, which comes from Debian and may be missing.
    if "initdb" in outcome.absent.get("millstream", ""):
        pytest.skip(outcome.absent["millstream"])
    (reading,) = outcome.readings["millstream"]
    all_metrics = {metric.name for metric in all_measures()[scenario.measure].metrics}
    ours = {name for name in all_metrics if name.startswith("ours_")}
    assert set(reading.values) == (ours if reading.detail.get("missing") else all_metrics)


def test_every_kind_of_connector_has_a_scenario() -> None:
    from bench.load.spark_connectors import KINDS

    kinds = [
        scenario.amount["kind"] for scenario in load_scenarios() if scenario.measure == "connector"
    ]
    assert sorted(kinds) == sorted(KINDS)


def test_error_without_maven_names_the_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jars, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.Missing, match=r"spark-sql-kafka-0-10_2\.13:9\.9\.9 needs Maven"):
        jars.kafka("9.9.9")


def test_jars_are_cached_while_their_files_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jars, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder, jar = jars._folder((jars.SQLITE,)), tmp_path / "driver.jar"
    folder.mkdir()
    (folder / "jars").write_text(f"{jar}\n")
    with pytest.raises(jars.Missing):
        jars.jars(jars.SQLITE)
    jar.touch()
    assert jars.jars(jars.SQLITE) == (str(jar),)


def test_missing_part_is_reported_once() -> None:
    reading = Reading({"ours_rows_per_s": 1.0}, {"missing": "no jars"})
    run = Run(
        {}, {"millstream": "1"}, {}, 2, {"connect-x": Outcome({"millstream": [reading, reading]})}
    )
    assert list(report.remarks(run)) == ["connect-x has no figure for a part: no jars"]

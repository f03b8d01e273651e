"""The scenario and peer files are valid; errors name the file."""

from pathlib import Path

import pytest
from bench.measures import all_measures
from bench.model import BadDeclaration, Target, load_peers, load_scenarios, select

BASELINE = "[load]\nmessage_bytes = 100\nacks = 1\n"


def write(folder: Path, scenario: str) -> tuple[Path, Path]:
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "odd.toml").write_text(scenario)
    (folder / "baseline.toml").write_text(BASELINE)
    return folder / "scenarios", folder / "baseline.toml"


def test_scenarios_name_existing_measures_metrics_and_peers() -> None:
    measures, peers = all_measures(), load_peers()
    for scenario in load_scenarios():
        metrics = {metric.name for metric in measures[scenario.measure].metrics}
        assert {target.metric for target in scenario.targets} <= metrics, scenario.name
        assert {t.versus for t in scenario.targets} <= {None, *peers}, scenario.name


def test_cannot_of_a_peer_names_measures() -> None:
    for peer in load_peers().values():
        assert set(peer.cannot) <= set(all_measures()), peer.name


def test_scenario_may_change_one_factor_of_the_baseline(tmp_path: Path) -> None:
    folder, baseline = write(tmp_path, 'title = "t"\nmeasure = "produce"\n[factor]\nacks = -1\n')
    (scenario,) = load_scenarios(folder, baseline)
    assert scenario.load == {"message_bytes": 100, "acks": -1}


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        ("acks = -1\nmessage_bytes = 5", "2 factors differ"),
        ("colour = 1", "no factor colour"),
    ],
)
def test_other_changes_of_the_baseline_are_rejected(
    tmp_path: Path, factors: str, reason: str
) -> None:
    folder, baseline = write(tmp_path, f'title = "t"\nmeasure = "produce"\n[factor]\n{factors}\n')
    with pytest.raises(BadDeclaration, match=f"odd.toml: .*{reason}"):
        load_scenarios(folder, baseline)


def test_unknown_field_is_rejected_with_the_file_name(tmp_path: Path) -> None:
    folder, baseline = write(tmp_path, 'title = "t"\nmeasure = "produce"\nspeed = 3\n')
    with pytest.raises(BadDeclaration, match=r"odd\.toml: .*speed"):
        load_scenarios(folder, baseline)


def test_unknown_name_is_rejected_with_the_known_names() -> None:
    with pytest.raises(BadDeclaration, match="unknown peer rabbit; choose from: a, b"):
        select(["rabbit"], {"a": 1, "b": 2}, "peer")


def test_target_is_met_within_its_limit() -> None:
    floor, ceiling = Target("m", "mock", at_least=0.85), Target("m", at_most=20)
    assert (floor.met(0.85), floor.met(0.84), ceiling.met(20), ceiling.met(20.1)) == (
        True,
        False,
        True,
        False,
    )
    assert (floor.text("s"), ceiling.text("ms")) == ("≥ 0.85x mock", "≤ 20 ms")

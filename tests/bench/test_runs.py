"""A small run against librdkafka's mock, and the report of its readings."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench.__main__ import Runner
from bench.load import frames
from bench.measures import Measure, Reading, all_measures
from bench.model import Metric, Target, load_peers
from bench.publish import merged
from bench.report import BEGIN, END, markdown, remarks, rows, write_docs
from bench.results import Outcome, Run, read_run
from bench.running import Workshop

from millstream.wire.records.batch import read_records
from support.bench.small_scenarios import tiny

TINY = {"megabytes": 0.5, "requests": 200, "messages": 20}
FACTS = dict.fromkeys(("processor", "kernel", "file_system", "python"), "x") | {
    "cores": 2,
    "memory_gib": 4,
    "packages": {},
}


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of("mock")


@pytest.mark.parametrize(
    "name",
    ["produce-100b", "consume", "requests-produce", "requests-fetch", "round-trip", "sync-produce"],
)
def test_scenario_yields_every_metric_of_its_measure(runner: Runner, name: str) -> None:
    scenario = tiny(name, TINY)
    outcome = runner.scenario(scenario, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["mock"]
    assert set(reading.values) >= {
        metric.name for metric in all_measures()[scenario.measure].metrics
    }


def test_peer_that_cannot_run_is_reported_with_the_reason(runner: Runner) -> None:
    outcome = runner.scenario(tiny("end-to-end-1k", TINY), 1, "")
    assert (list(outcome.absent), outcome.readings) == (["mock"], {})


def test_scratch_directory_is_left_empty(tmp_path: Path) -> None:
    workshop = Workshop(str(tmp_path))
    Runner(workshop, [load_peers()["mock"]], all_measures()).scenario(tiny("start", TINY), 1, "")
    workshop.close()
    assert list(tmp_path.iterdir()) == []


def test_ratios_are_taken_round_by_round() -> None:
    metric = Metric("m", "m", "s", "lower")
    readings = {"a": [1.0, 4.0, 3.0], "b": [2.0, 4.0, 1.0]}
    outcome = Outcome(
        {peer: [Reading({"m": v}) for v in values] for peer, values in readings.items()}
    )
    ratio = outcome.ratio("a", "b", metric)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 0.5, 3.0)


def test_ratio_leaves_out_rounds_without_both_figures() -> None:
    readings = {"a": [{"m": 1.0}, {}, {"m": 3.0}], "b": [{"m": 1.0}, {"m": 5.0}, {"m": 1.0}]}
    outcome = Outcome(
        {peer: [Reading(values) for values in rounds] for peer, rounds in readings.items()}
    )
    ratio = outcome.ratio("a", "b", Metric("m", "m", "s", "lower"))
    assert ratio is not None
    assert (ratio.low, ratio.high) == (1.0, 3.0)


def test_failures_and_missing_rounds_are_reported() -> None:
    scenario = tiny("end-to-end-10k", TINY)
    mine, theirs = (
        [Reading({"p50_us": 500.0}, {"late_ms": 9.0})] * 3,
        [Reading({"p50_us": 2e6}, {"late_ms": 900.0})],
    )
    outcome = Outcome(
        {"millstream": mine, "kafka": theirs}, {"kafka": "failed: messages are missing"}
    )
    run = Run({}, {"millstream": "1", "kafka": "4"}, {}, 3, {scenario.name: outcome})
    row = next(iter(rows(run, [scenario], all_measures())))
    assert row.figures == ("500 µs", "2,000,000 µs, then failed (round 2)")
    assert row.ratios == ("0.00025x",)
    assert list(remarks(run)) == [
        "kafka has figures of only 1 round for end-to-end-10k: failed: messages are missing",
        "kafka does not keep up in end-to-end-10k: the last message was acknowledged 0.9 s late",
    ]
    page = markdown(replace(run, facts=FACTS, rounds=5), [row], [scenario], load_peers())
    assert f"**{scenario.title}.** (3 rounds) {scenario.note}" in " ".join(page.split())


def test_reads_that_were_not_cold_are_reported() -> None:
    rounds = [Reading({}, {"cold_share": share}) for share in (1.0, 0.25)]
    run = Run({}, {"kafka": "4"}, {}, 2, {"consume-cold": Outcome({"kafka": rounds})})
    assert list(remarks(run)) == [
        "kafka in consume-cold: only 25% of the pages are known to have been cold"
    ]


def test_comparison_with_another_run_is_marked() -> None:
    share = Target("messages_per_s", of="produce-1kb", at_least=0.8)
    scenario = replace(tiny("produce-100b", TINY), targets=(share,))
    reading = Reading({"messages_per_s": 2e6})
    parts = [
        Run(FACTS, {"millstream": "1"}, {}, 1, {name: Outcome({"millstream": [reading]})})
        for name in (scenario.name, "produce-1kb")
    ]
    row = next(iter(rows(merged(parts), [scenario], all_measures())))
    assert row.verdict == "met (of another run)"


def test_unexpected_error_ends_the_peer_but_not_the_run(runner: Runner) -> None:
    def broken(*_: object) -> Reading:
        raise OSError("no such socket")

    runner.measures = {"start": Measure("start", (), broken)}
    outcome = runner.scenario(tiny("start", TINY), 1, "")
    assert outcome.absent == {"mock": "failed: OSError: no such socket"}


def test_worst_round_of_a_stall_counts() -> None:
    outcome = Outcome({"a": [Reading({"m": v}) for v in (1.0, 9.0, 2.0)]})
    summary = outcome.summary("a", Metric("m", "m", "ms", "lower", worst=True))
    assert summary is not None and summary.value == 9.0


def test_run_survives_json_and_the_page_keeps_its_other_text(tmp_path: Path) -> None:
    scenario = tiny("produce-100b", TINY)
    reading = Reading({"messages_per_s": 2e6, "megabytes_per_s": 200.0, "cpu_us_per_mb": 450.0})
    outcome = Outcome({"millstream": [reading], "mock": [reading]}, {"other": "failed: it fell"})
    run = Run(FACTS, {"millstream": "1", "mock": "2"}, {}, 1, {scenario.name: outcome})
    assert read_run(run.write(tmp_path)) == run
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_docs(
        page, markdown(run, list(rows(run, [scenario], all_measures())), [scenario], load_peers())
    )
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert (
        "| messages | 2,000,000 msg/s | 2,000,000 msg/s | 1.00x | ≥ 0.95x mock; ≥ 1.2x kafka | met; not measured |"
        in text
    )
    assert "it fell" in text


def test_raw_generator_builds_a_valid_batch() -> None:
    values = [
        record.value
        for record in read_records(
            frames.record_batch([b"one", b"", b"x" * 300], 7), max_bytes=1000
        )
    ]
    assert values == [b"one", b"", b"x" * 300]


def test_timed_loop_names_the_slowest_callback(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import asyncio, sys\n"
        "async def quick():\n    await asyncio.sleep(0)\n"
        "async def slow():\n    await quick()\n    sum(range(2_000_000))\n"
        "asyncio.run(slow())\n"
    )
    report = tmp_path / "report.json"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "bench.timed_loop", str(report), "busy"]
    subprocess.run(
        command, check=True, cwd=root, env={"PYTHONPATH": f"{root}:{tmp_path}"}, timeout=60
    )
    timings = json.loads(report.read_text())
    assert timings["callbacks"] >= 2
    assert timings["slowest"][0]["callback"] == "task slow"

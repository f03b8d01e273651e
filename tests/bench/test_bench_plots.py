"""Pictures of a run: what is drawn, from what, and that they are pictures."""

import struct
import zlib
from pathlib import Path

from bench.load.job import latency_us
from bench.measures import Reading, all_measures
from bench.model import load_scenarios
from bench.results import Outcome, Run, read_run

from bench import plots

SCENARIOS = {s.name: s for s in load_scenarios()}


def run_with(outcomes: dict[str, Outcome]) -> Run:
    return Run({}, {"millstream": "1", "kafka": "4"}, {}, 1, outcomes)


def drawn(run: Run) -> dict[str, bytes]:
    return plots.draw(run, [SCENARIOS[name] for name in run.outcomes], all_measures())


def pixels(picture: bytes) -> tuple[int, int, bytes]:
    """Width, height and the unpacked rows of a PNG with one IDAT."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", picture, 16)
    at = picture.index(b"IDAT")
    (size,) = struct.unpack_from(">I", picture, at - 4)
    return width, height, zlib.decompress(picture[at + 4 : at + 4 + size])


def longest_runs(picture: bytes, colours: list[tuple[int, int, int]]) -> list[int]:
    """Of each colour the longest horizontal stretch, in dots."""
    width, height, data = pixels(picture)
    found = []
    for colour in colours:
        dots, best = bytes(colour), 0
        for row in range(height):
            line = data[row * (3 * width + 1) + 1 : (row + 1) * (3 * width + 1)]
            while dots * (best + 1) in line:
                best += 1
        found.append(best)
    return found


def test_bars_are_as_long_as_the_figures_are_large() -> None:
    outcome = Outcome(
        {"millstream": [Reading({"messages_per_s": 2e6})], "kafka": [Reading({"messages_per_s": 1e6})]}
    )
    found = drawn(run_with({"produce-100b": outcome}))
    assert list(found) == ["throughput"]
    mine, theirs = longest_runs(found["throughput"], [plots.COLOURS[0], plots.COLOURS[1]])
    assert abs(mine - 2 * theirs) <= 2 and mine > 500


def test_latency_and_memory_are_drawn_from_what_the_readings_keep() -> None:
    samples = [1000 * i for i in range(1, 20_001)]
    latency = Outcome({peer: [Reading({}, latency_us(samples))] for peer in ("millstream", "kafka")})
    memory = Outcome({"millstream": [Reading({}, {"resident_mib": [30.0, 40.0], "sample_s": 0.05})]})
    found = drawn(run_with({"end-to-end-1k": latency, "memory-growth": memory}))
    assert set(found) == {"latency", "memory"}
    assert all(pixels(picture)[0] == plots.WIDTH for picture in found.values())


def test_a_run_without_figures_has_no_pictures() -> None:
    assert drawn(run_with({"produce-100b": Outcome({}, {"millstream": "failed: it fell"})})) == {}


def test_percentiles_that_too_few_samples_tell_are_left_out() -> None:
    shares = [share for share, _ in latency_us([1000] * 100)["curve_us"]]
    assert max(shares) == 0.99


def test_pictures_can_be_drawn_from_the_file_of_a_run(tmp_path: Path) -> None:
    outcome = Outcome(
        {"millstream": [Reading({"messages_per_s": 2e6}, {"curve_us": [[0.5, 10.0], [0.9, 20.0]]})]}
    )
    kept = run_with({"produce-100b": outcome}).write(tmp_path)
    paths = plots.write(drawn(read_run(kept)), tmp_path / "made", "run")
    assert [path.name for path in paths] == ["run-throughput.png", "run-latency.png"]
    assert all(path.stat().st_size > 100 for path in paths)

"""The pictures of a run: their content and format."""

import struct
import zlib
from pathlib import Path

from bench.load.job import latency_us
from bench.measures import Reading, all_measures
from bench.model import load_scenarios
from bench.publish import merged, publish
from bench.report import BEGIN, END
from bench.results import Outcome, Run, read_run

from bench import plots

SCENARIOS = {s.name: s for s in load_scenarios()}


def run_with(outcomes: dict[str, Outcome]) -> Run:
    return Run({}, {"millstream": "1", "kafka": "4"}, {}, 1, outcomes)


def drawn(run: Run) -> dict[str, bytes]:
    return plots.draw(run, [SCENARIOS[name] for name in run.outcomes], all_measures())


def pixels(picture: bytes) -> tuple[int, int, bytes]:
    """Return width, height and the unpacked rows of a PNG with one IDAT."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", picture, 16)
    at = picture.index(b"IDAT")
    (size,) = struct.unpack_from(">I", picture, at - 4)
    return width, height, zlib.decompress(picture[at + 4 : at + 4 + size])


def longest_runs(picture: bytes, colours: list[tuple[int, int, int]]) -> list[int]:
    """Return the longest horizontal stretch of each colour, in dots."""
    width, height, data = pixels(picture)
    lengths = []
    for colour in colours:
        dots, best = bytes(colour), 0
        for row in range(height):
            line = data[row * (3 * width + 1) + 1 : (row + 1) * (3 * width + 1)]
            while dots * (best + 1) in line:
                best += 1
        lengths.append(best)
    return lengths


def test_length_of_bars_is_proportional_to_figures() -> None:
    outcome = Outcome(
        {
            "millstream": [Reading({"messages_per_s": 2e6})],
            "kafka": [Reading({"messages_per_s": 1e6})],
        }
    )
    pictures = drawn(run_with({"produce-100b": outcome}))
    assert list(pictures) == ["throughput"]
    mine, theirs = longest_runs(pictures["throughput"], [plots.COLOURS[0], plots.COLOURS[1]])
    assert abs(mine - 2 * theirs) <= 2 and mine > 500


def test_latency_and_memory_are_drawn_from_details_of_readings() -> None:
    samples = [1000 * i for i in range(1, 20_001)]
    latency = Outcome(
        {peer: [Reading({}, latency_us(samples))] for peer in ("millstream", "kafka")}
    )
    memory = Outcome(
        {"millstream": [Reading({}, {"resident_mib": [30.0, 40.0], "sample_s": 0.05})]}
    )
    pictures = drawn(run_with({"end-to-end-1k": latency, "memory-growth": memory}))
    assert set(pictures) == {"latency", "memory"}
    assert all(pixels(picture)[0] == plots.WIDTH for picture in pictures.values())


def test_run_without_figures_has_no_pictures() -> None:
    assert drawn(run_with({"produce-100b": Outcome({}, {"millstream": "failed: it fell"})})) == {}


def test_percentiles_without_enough_samples_are_left_out() -> None:
    shares = [share for share, _ in latency_us([1000] * 100)["curve_us"]]
    assert max(shares) == 0.99


def facts() -> dict[str, object]:
    text = dict.fromkeys(("processor", "kernel", "file_system", "python"), "x")
    return text | {"cores": 2, "memory_gib": 4, "packages": {}}


def test_page_combines_several_runs(tmp_path: Path) -> None:
    def run(name: str, peers: dict[str, float], missing: dict[str, str]) -> Run:
        readings = {peer: [Reading({"messages_per_s": value})] for peer, value in peers.items()}
        return Run(
            facts(), dict.fromkeys(peers, "1"), missing, 3, {name: Outcome(readings)}, 60.0, [0.1]
        )

    first = run("produce-100b", {"millstream": 100.0, "mock": 50.0}, {"kafka": "no program java"})
    second = run("produce-1kb", {"millstream": 300.0, "kafka": 100.0}, {})
    again = run("produce-100b", {"millstream": 200.0, "kafka": 100.0}, {})
    combined = merged(
        [read_run(r.write(tmp_path / str(i))) for i, r in enumerate((first, second, again))]
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    written = publish(combined, page)
    text = page.read_text()
    assert [path.name for path in written] == ["page.md", "page.json", "page-throughput.png"]
    assert "![page: throughput](page-throughput.png)" in text and "3.0 minutes" in text
    assert (
        "| messages | 200 msg/s | 100 msg/s | 2.00x |" in text
    )  # of the later run, without the mock
    assert "| messages | 300 msg/s | 100 msg/s | 3.00x |" in text
    assert "no program java" not in text

    publish(
        merged(
            [
                read_run(tmp_path / "page.json"),
                run("produce-1kb", {"millstream": 500.0, "kafka": 100.0}, {}),
            ]
        ),
        page,
    )
    renewed = read_run(tmp_path / "page.json")
    assert "| messages | 200 msg/s | 100 msg/s | 2.00x |" in page.read_text()
    assert "| messages | 500 msg/s | 100 msg/s | 5.00x |" in page.read_text()
    assert renewed.parts["produce-100b"] != renewed.parts["produce-1kb"]
    assert merged([renewed]).parts["produce-100b"] != merged([renewed]).parts["produce-1kb"]

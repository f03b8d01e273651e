"""A run as pictures: bars of throughput, curves of latency percentiles, memory over time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

from bench.measures import Measure, Reading
from bench.model import Metric, Scenario
from bench.report import number
from bench.results import Outcome, Run
from millstream.cli.perf.png import BLACK, GREY, LIGHT, Canvas, Colour, text_width

# The throughput of a scenario is the first of these metrics that it has.
RATES = ("messages_per_s", "requests_per_s")
WIDTH, MARGIN, HEAD = 1200, 30, 60
LEGEND = 24
BAR, BAR_GAP, GROUP_GAP = 16, 4, 34
PANEL, PANEL_GAP, LEFT = 300, 90, 130
COLOURS: tuple[Colour, ...] = (
    *((31, 119, 180), (214, 39, 40), (127, 127, 127), (255, 127, 14), (44, 160, 44)),
    *((148, 103, 189), (140, 86, 75), (227, 119, 194), (188, 189, 34), (23, 190, 207)),
)


@dataclass(frozen=True, slots=True)
class Line:
    peer: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    lines: Sequence[Line]


def draw(
    run: Run, scenarios: Sequence[Scenario], measures: Mapping[str, Measure]
) -> dict[str, bytes]:
    """Return PNG files by subject; subjects without data are left out."""
    colours = dict(zip(run.peers, COLOURS * (1 + len(run.peers) // len(COLOURS)), strict=False))
    chosen = [scenario for scenario in scenarios if scenario.name in run.outcomes]
    pictures: dict[str, bytes] = {}
    if groups := _groups(run, chosen, measures):
        pictures["throughput"] = _bars(groups, colours)
    if latency := _latency(run, chosen):
        pictures["latency"] = _panels(latency, colours, _percentile_axis(latency))
    if memory := _memory(run, chosen):
        pictures["memory"] = _panels(memory, colours, _time_axis(memory))
    return pictures


def write(pictures: Mapping[str, bytes], folder: Path, stem: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}-{name}.png" for name in pictures]
    for path, picture in zip(paths, pictures.values(), strict=True):
        path.write_bytes(picture)
    return paths


# ---- throughput ----


def _groups(
    run: Run, scenarios: Sequence[Scenario], measures: Mapping[str, Measure]
) -> list[tuple[str, Metric, dict[str, float]]]:
    """Return title, metric and the figure of each peer, for every scenario that has a rate."""
    groups = []
    for scenario in scenarios:
        metrics = {metric.name: metric for metric in measures[scenario.measure].metrics}
        metric = next((metrics[name] for name in RATES if name in metrics), None)
        if metric is not None and (figures := _figures(run, run.outcomes[scenario.name], metric)):
            groups.append((scenario.title, metric, figures))
    return groups


def _figures(run: Run, outcome: Outcome, metric: Metric) -> dict[str, float]:
    summaries = {peer: outcome.summary(peer, metric) for peer in run.peers}
    return {peer: summary.value for peer, summary in summaries.items() if summary is not None}


def _bars(
    groups: Sequence[tuple[str, Metric, dict[str, float]]], colours: Mapping[str, Colour]
) -> bytes:
    """Draw the bars of a scenario relative to its longest: ratios count, and units differ."""
    bars = sum(len(figures) for _, _, figures in groups)
    canvas = Canvas(WIDTH, HEAD + bars * (BAR + BAR_GAP) + len(groups) * GROUP_GAP + MARGIN)
    present = [peer for peer in colours if any(peer in figures for _, _, figures in groups)]
    _head(canvas, "throughput, each scenario in relation to its best", present, colours)
    y, max_width = HEAD, WIDTH - 2 * MARGIN - text_width("9,999,999 msg/s  9.99x") - 10
    for title, metric, figures in groups:
        canvas.text(MARGIN, y + 8, title, BLACK)
        y, best = y + GROUP_GAP - BAR_GAP, max(figures.values())
        for peer, value in figures.items():
            width = max(1, round(max_width * value / best)) if best else 1
            canvas.box(MARGIN, y, width, BAR, colours[peer])
            share = f"  {value / best:.2f}x" if best else ""
            canvas.text(MARGIN + width + 8, y + 1, f"{number(value)} {metric.unit}{share}", GREY)
            y += BAR + BAR_GAP
        y += BAR_GAP
    return canvas.png()


def _head(canvas: Canvas, title: str, peers: Sequence[str], colours: Mapping[str, Colour]) -> None:
    canvas.text(MARGIN, 8, title, BLACK)
    x = MARGIN
    for peer in peers:
        canvas.box(x, 32, 14, 14, colours[peer])
        canvas.text(x + LEGEND, 32, peer, BLACK)
        x += LEGEND * 2 + text_width(peer)


# ---- curves ----


def _latency(run: Run, scenarios: Sequence[Scenario]) -> list[Panel]:
    return [
        Panel(scenario.title, "µs", lines)
        for scenario in scenarios
        if (lines := _lines(run, scenario, _percentiles))
    ]


def _memory(run: Run, scenarios: Sequence[Scenario]) -> list[Panel]:
    return [
        Panel(scenario.title, "MiB", lines)
        for scenario in scenarios
        if (lines := _lines(run, scenario, _resident))
    ]


def _lines(
    run: Run,
    scenario: Scenario,
    points_of: Callable[[Sequence[Reading]], list[tuple[float, float]]],
) -> list[Line]:
    readings = run.outcomes[scenario.name].readings
    lines = [Line(peer, points_of(readings[peer])) for peer in run.peers if peer in readings]
    return [line for line in lines if line.points]


def _percentiles(readings: Sequence[Reading]) -> list[tuple[float, float]]:
    """Return the median of the rounds at each percentile; x grows by one for each further nine."""
    by_share: dict[float, list[float]] = {}
    for reading in readings:
        for share, value in reading.detail.get("curve_us", ()):
            by_share.setdefault(share, []).append(value)
    return [(-math.log10(1 - share), median(values)) for share, values in sorted(by_share.items())]


def _resident(readings: Sequence[Reading]) -> list[tuple[float, float]]:
    """Return the median of the rounds at each moment, for as long as the longest round."""
    series = [
        reading.detail["resident_mib"] for reading in readings if "sample_s" in reading.detail
    ]
    moments = zip_longest(*series)
    step_s = next(
        (reading.detail["sample_s"] for reading in readings if "sample_s" in reading.detail), 0.0
    )
    return [
        (i * step_s, median(value for value in moment if value is not None))
        for i, moment in enumerate(moments)
    ]


@dataclass(frozen=True, slots=True)
class Axis:
    """Marks along x; whether y is logarithmic."""

    maximum: float
    marks: Sequence[tuple[float, str]]
    logarithmic: bool


def _percentile_axis(panels: Sequence[Panel]) -> Axis:
    shares = (0.5, 0.9, 0.99, 0.999, 0.9999)
    maximum = _largest_x(panels)
    marks = [(-math.log10(1 - share), f"p{share * 100:g}") for share in shares]
    return Axis(maximum, [mark for mark in marks if mark[0] <= maximum + 0.01], logarithmic=True)


def _time_axis(panels: Sequence[Panel]) -> Axis:
    maximum = _largest_x(panels)
    return Axis(
        maximum,
        [(maximum * i / 5, f"{maximum * i / 5:.1f} s") for i in range(6)],
        logarithmic=False,
    )


def _largest_x(panels: Sequence[Panel]) -> float:
    return max(x for panel in panels for line in panel.lines for x, _ in line.points) or 1.0


def _panels(panels: Sequence[Panel], colours: Mapping[str, Colour], axis: Axis) -> bytes:
    canvas = Canvas(WIDTH, HEAD + len(panels) * (PANEL + PANEL_GAP))
    present = [
        peer for peer in colours if any(line.peer == peer for p in panels for line in p.lines)
    ]
    title = "latency by percentile" if axis.logarithmic else "resident memory over time"
    _head(canvas, title, present, colours)
    for i, panel in enumerate(panels):
        _panel(canvas, HEAD + 40 + i * (PANEL + PANEL_GAP), panel, colours, axis)
    return canvas.png()


def _panel(
    canvas: Canvas, top: int, panel: Panel, colours: Mapping[str, Colour], axis: Axis
) -> None:
    values = [value for line in panel.lines for _, value in line.points]
    scale = _Scale(min(values), max(values), axis.logarithmic)
    bottom, width = top + PANEL, WIDTH - LEFT - MARGIN
    canvas.text(LEFT, top - 26, panel.title, BLACK)
    for value in scale.marks():
        y = bottom - round(PANEL * scale.share(value))
        canvas.line(LEFT, y, LEFT + width, y, LIGHT)
        label = f"{number(value)} {panel.unit}"
        canvas.text(LEFT - 8 - text_width(label), y - 7, label, GREY)
    for x, label in axis.marks:
        x_position = LEFT + round(width * x / axis.maximum)
        canvas.line(x_position, top, x_position, bottom, LIGHT)
        canvas.text(
            min(x_position - text_width(label) // 2, WIDTH - text_width(label)),
            bottom + 8,
            label,
            GREY,
        )
    for line in panel.lines:
        points = [
            (LEFT + width * x / axis.maximum, bottom - PANEL * scale.share(value))
            for x, value in line.points
        ]
        for before, after in zip(points, points[1:] or points, strict=False):
            canvas.line(*before, *after, colours[line.peer], thick=3)


class _Scale:
    """From the power of ten below the smallest value to that above the largest, or from 0."""

    def __init__(self, smallest: float, largest: float, logarithmic: bool) -> None:
        self.logarithmic = logarithmic
        self.low = math.floor(math.log10(max(smallest, 1e-3))) if logarithmic else 0.0
        self.high = (
            math.ceil(math.log10(max(largest, 1e-3)) + 1e-9)
            if logarithmic
            else (largest or 1.0) * 1.05
        )

    def share(self, value: float) -> float:
        position = math.log10(max(value, 1e-3)) if self.logarithmic else value
        return (position - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        if self.logarithmic:
            return [10.0**power for power in range(int(self.low), int(self.high) + 1)]
        return [self.high * i / 4 for i in range(5)]

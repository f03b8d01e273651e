"""The plot of `millstream perf`: records per second, and latency percentiles of each second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from millstream.cli.perf.png import BLACK, GREY, LIGHT, Canvas, Colour, text_width
from millstream.cli.perf.run import INTERVAL_S, SHARES, Measured
from millstream.client.errors import ClientError

WIDTH, HEIGHT = 1000, 700
LEFT, RIGHT, TOP, GAP, BOTTOM = 130, 30, 60, 80, 50
COLOURS: tuple[Colour, ...] = ((31, 119, 180), (44, 160, 44), (255, 127, 14), (214, 39, 40))


class Series:
    """The values of each second, drawn as one line of a panel; None leaves a gap."""

    def __init__(self, name: str, colour: Colour, values: Sequence[float | None]) -> None:
        self.name, self.colour, self.values = name, colour, values


def draw(path: str, measured: Measured, title: str) -> None:
    """Write the plot. Raise ClientError if the file cannot be written."""
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.text(LEFT, 12, title, BLACK)
    rows = measured.intervals
    height = (HEIGHT - TOP - GAP - BOTTOM) // 2
    rates = [interval.records / INTERVAL_S for interval in rows]
    _panel(canvas, TOP, height, "records/s", [Series("", COLOURS[0], rates)])
    percentiles = [row.latency.percentiles(SHARES) if row.latency.count else None for row in rows]
    lines = [
        Series(
            f"p{share:g}",
            COLOURS[number],
            [row[number] / 1000 if row else None for row in percentiles],
        )
        for number, share in enumerate(SHARES)
    ]
    if any(percentiles):
        _panel(canvas, TOP + height + GAP, height, "latency ms", lines)
    last = f"{max(len(rows), 1) * INTERVAL_S:g} s"
    canvas.text(LEFT, HEIGHT - 28, "0 s", GREY)
    canvas.text(WIDTH - RIGHT - text_width(last), HEIGHT - 28, last, GREY)
    try:
        Path(path).write_bytes(canvas.png())
    except OSError as error:
        raise ClientError(f"cannot write the plot to {path}: {error.strerror or error}") from None


def _panel(canvas: Canvas, top: int, height: int, name: str, lines: Sequence[Series]) -> None:
    highest = _nice(
        max((value for line in lines for value in line.values if value is not None), default=1.0)
    )
    bottom, right = top + height, WIDTH - RIGHT
    canvas.text(LEFT, top - 22, name, GREY)
    for step in range(5):
        y = bottom - height * step // 4
        canvas.line(LEFT, y, right, y, LIGHT if step else GREY)
        label = f"{highest * step / 4:,.6g}"
        canvas.text(LEFT - 10 - text_width(label), y - 7, label, GREY)
    at = right
    for line in reversed([line for line in lines if line.name]):
        at -= text_width(line.name) + 14
        canvas.text(at, top - 22, line.name, line.colour)
    for line in lines:
        _curve(canvas, line, bottom, height, right - LEFT, highest)


def _curve(
    canvas: Canvas, series: Series, bottom: int, height: int, width: int, highest: float
) -> None:
    step = width / max(len(series.values) - 1, 1)
    before: tuple[float, float] | None = None
    for number, value in enumerate(series.values):
        if value is None:
            before = None
            continue
        point = LEFT + number * step, bottom - height * value / highest
        canvas.line(*(before or point), *point, series.colour, thick=3)
        before = point


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5, 5 or 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)

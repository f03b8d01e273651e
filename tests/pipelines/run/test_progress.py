"""The figures of the live table."""

from __future__ import annotations

from millstream.pipelines.run.progress import Figures, FlowProgress, cells


def batch(number: int, rows: int, **more: object) -> dict[str, object]:
    return {
        "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
        "batchId": number,
        "numInputRows": rows,
        "durationMs": {"addBatch": 700, "triggerExecution": 900},
        **more,
    }


def test_figures_are_taken_from_batch_reports() -> None:
    flow = FlowProgress("paid-orders")
    flow.begin(0)
    flow.add_rows(2000)
    assert flow.report(
        batch(
            1,
            4000,
            stateOperators=[
                {"memoryUsedBytes": 61_000_000, "numRowsTotal": 7, "numRowsDroppedByWatermark": 2}
            ],
            sources=[
                {"endOffset": '{"t": {"0": 5, "1": 7}}', "latestOffset": {"t": {"0": 4105, "1": 7}}}
            ],
            eventTime={"watermark": "2026-01-01T00:00:00.000Z"},
        ),
        2000,
    )
    assert not flow.report(batch(1, 4000), 2100)
    figures = flow.figures("running", 2100)
    assert figures == Figures(
        flow="paid-orders",
        state="running",
        batch=1,
        input_rows_per_s=2000.0,
        output_rows_per_s=1000.0,
        batch_ms=900,
        lag=4100,
        state_bytes=61_000_000,
        state_rows=7,
        watermark_ms=1_767_225_600_000,
        input_rows=4000,
        output_rows=2000,
        late_rows=2,
    )
    assert cells(figures, 1_767_225_662_000) == (
        "paid-orders",
        "2,000",
        "1,000",
        "0.9 s",
        "4.1k",
        "61 MB",
        "-1 m 02 s",
    )


def test_rates_fall_to_zero_without_input() -> None:
    flow = FlowProgress("a")
    flow.begin(0)
    for number in range(1, 4):
        flow.report(batch(number, 100), number * 1000)
    assert flow.figures("running", 3000).input_rows_per_s == 100.0
    assert flow.figures("running", 6000).input_rows_per_s == 50.0
    assert flow.figures("running", 60_000).input_rows_per_s == 0.0


def test_flow_without_reports_shows_dashes() -> None:
    assert cells(FlowProgress("a").figures("starting", 0), 0) == ("a", "-", "-", "-", "-", "-", "-")

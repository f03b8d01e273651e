"""Tables as text, and a block that is redrawn on a terminal."""

from __future__ import annotations

import sys

import pytest

from millstream.cli.support.output import print_table
from millstream.cli.support.table import BOLD, RED, Cell, Live, Table, width_of, wrapped


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def orders() -> Table:
    table = Table("TOPIC", "PARTITIONS", "ID", ruled=True)
    table.add("orders", "3", "onpnvO2RTeaBBxzb5iA6Eg")
    table.add("日本", "12", "-")
    return table


def test_columns_are_aligned_also_with_wide_letters() -> None:
    table = orders()
    table.ruled = False
    assert table.lines() == [
        "TOPIC   PARTITIONS  ID",
        "orders  3           onpnvO2RTeaBBxzb5iA6Eg",
        "日本    12          -",
    ]


def test_ruled_table_sets_the_names_apart() -> None:
    assert orders().lines() == [
        "",
        " TOPIC    PARTITIONS   ID",
        " " + "─" * 44,
        " orders   3            onpnvO2RTeaBBxzb5iA6Eg",
        " 日本     12           -",
        "",
    ]


def test_no_line_is_wider_than_the_terminal() -> None:
    table = Table("A", "B", ruled=True)
    table.add("a long text that must wrap somewhere", "x" * 40)
    lines = table.lines(40)
    assert max(map(width_of, lines)) <= 40
    assert "…" in "".join(lines) and "somewhere" in " ".join(lines)


def test_table_without_rows_is_its_head() -> None:
    assert Table("A", "B").lines() == ["A  B"]


def test_numbers_are_right_aligned_where_asked() -> None:
    table = Table("flow", "rows", right=["rows"])
    table.add("a", "12345")
    table.add("b", "1")
    assert table.lines() == ["flow   rows", "a     12345", "b         1"]


def test_styles_are_escapes_only_with_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("A", "B")
    table.add("x", Cell("dead", RED))
    assert "\x1b" not in "".join(table.lines())
    head, row = table.lines(colour=True)
    assert head.startswith(f"\x1b[{BOLD}mA\x1b[0m") and row == f"x  \x1b[{RED}mdead\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert table.lines(colour=True) == table.lines()


def test_words_are_wrapped_and_long_ones_shortened() -> None:
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("abcdefghij", 5) == ["abcd…"]
    assert wrapped("short", 5) == ["short"]


def test_printed_table_is_plain_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [(True, None), ((1, 2), "a\x1b[2J")])
    assert capsys.readouterr().out == "A    B\nyes  -\n1,2  a\\x1b[2J\n"


def test_output_of_others_appears_above_the_live_block(capsys: pytest.CaptureFixture[str]) -> None:
    output = sys.stdout
    with Live() as live:
        live.update(["first"])
        print("a remark")
        live.update(["second", "third"])
    assert sys.stdout is output
    shown = capsys.readouterr().out
    assert shown == (
        "\x1b[?25l\x1b[Jfirst\n\x1b[1F\x1b[Ja remark\nfirst\n\x1b[1F\x1b[Jsecond\nthird\n\x1b[?25h"
    )


def test_live_block_is_no_higher_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setenv("COLUMNS", "80")
    with Live() as live:
        live.update([str(number) for number in range(9)])
    assert capsys.readouterr().out.count("\n") == 3

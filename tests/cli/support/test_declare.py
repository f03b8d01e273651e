"""Commands from annotated functions: types, defaults, help and usage errors."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from millstream.cli.support import declare

seen: dict[str, Any] = {}


class Colour(StrEnum):
    """A choice."""

    red = "Red"
    blue = "Blue"


def parse_even(text: str) -> int:
    if int(text) % 2:
        raise declare.BadParameter(f"{text!r} is odd")
    return int(text)


app = declare.Application()


@app.command(epilog="The end.")
def paint(
    context: declare.Context,
    places: Annotated[list[str], declare.Argument(help="Names.")],
    count: Annotated[int, declare.Option("--count", "-n", min=1, max=9, help="How many.")] = 2,
    share: Annotated[float | None, declare.Option(help="A share.")] = None,
    colour: Annotated[Colour, declare.Option(case_sensitive=False, help="Which.")] = Colour.red,
    layer: Annotated[list[int] | None, declare.Option("--layer", min=0, help="Layers.")] = None,
    wait: Annotated[bool, declare.Option(help="Wait for it.")] = True,
    dry: Annotated[bool, declare.Option("--dry", help="Do nothing.")] = False,
    even: Annotated[int, declare.Option(parser=parse_even, metavar="N", help="Even.")] = 4,
    file: Annotated[
        Path | None, declare.Option(exists=True, dir_okay=False, help="A file.")
    ] = None,
    broker: Annotated[str, declare.Option(envvar="PAINT_BROKER", help="Where.")] = "here",
) -> None:
    """Paint places.

    In a colour.
    """
    seen.update(locals())


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        app.build()(args=list(words), prog_name="paint")
    shown = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, shown.out + shown.err


def test_defaults_are_those_of_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("wall", "door", capsys=capsys) == (0, "")
    context = seen.pop("context")
    assert (
        isinstance(context, declare.Context)
        and context.get_parameter_source("count").name == "DEFAULT"
    )
    assert seen == {
        "places": ["wall", "door"],
        "count": 2,
        "share": None,
        "colour": Colour.red,
        "layer": None,
        "wait": True,
        "dry": False,
        "even": 4,
        "file": None,
        "broker": "here",
    }


def test_values_have_the_annotated_types(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setenv("PAINT_BROKER", "there")
    words = [
        "wall",
        "-n3",
        "--share",
        "0.5",
        "--colour",
        "BLUE",
        "--layer",
        "1",
        "--layer",
        "2",
        "--no-wait",
        "--dry",
        "--even",
        "6",
        "--file",
    ]
    assert run(*words, str(tmp_path / "a"), capsys=capsys) == (0, "")
    assert (seen["count"], seen["share"], seen["colour"], seen["layer"]) == (
        3,
        0.5,
        Colour.blue,
        [1, 2],
    )
    assert (seen["wait"], seen["dry"], seen["even"]) == (False, True, 6)
    assert (seen["file"], seen["broker"]) == (tmp_path / "a", "there")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "Missing argument 'places'."),
        ("a -n x", "Invalid value for '--count' / '-n': 'x' is not a whole number"),
        ("a -n 0", "0 is out of range: must be at least 1"),
        ("a -n 10", "10 is out of range: must be at most 9"),
        ("a --share much", "'much' is not a number"),
        ("a --colour green", "'green' is not one of 'red', 'blue'."),
        ("a --even 3", "Invalid value for '--even': '3' is odd"),
        ("a --file /no/such", "file '/no/such' does not exist."),
        ("a --file /", "file '/' is a directory."),
        ("a --layer -1", "-1 is out of range: must be at least 0"),
    ],
)
def test_usage_errors_name_the_value_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: str, problem: str
) -> None:
    code, shown = run(*words.split(), capsys=capsys)
    assert code == 2 and problem in shown and shown.startswith("Usage: paint [OPTIONS] {places}...")


def test_help_shows_types_defaults_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run("--help", capsys=capsys)
    text = " ".join(shown.split())
    assert code == 0
    for part in (
        "Paint places. In a colour. Arguments: places... <list[str]> Names. [required] Options:",
        "-n, --count <int range> How many. [default: 2; 1<=x<=9]",
        "--share <float> A share. --colour <red|blue> Which. [default: Red]",
        "--layer <list[int]> Layers. [x>=0]",
        "--wait / --no-wait Wait for it. [default: wait] --dry Do nothing. --even N Even. [default: 4]",
        "--broker <str> Where. [env var: PAINT_BROKER; default: here]",
        "The end.",
    ):
        assert part in text


def test_group_suggests_similar_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    group = declare.Application(help="Verbs.")
    for name in ("describe", "delete"):
        group.command(name)(lambda: None)
    with pytest.raises(SystemExit):
        group.build()(args=["desrcibe"], prog_name="verbs")
    assert "No such command 'desrcibe'. Did you mean 'describe'" in capsys.readouterr().err


def test_callback_makes_a_group_of_one_verb() -> None:
    single = declare.Application()
    single.command("only")(lambda: None)
    assert not hasattr(single.build(), "commands")

    @single.callback()
    def about() -> None:
        """The help."""

    assert list(single.build().commands) == ["only"]  # type: ignore[attr-defined]
    assert single.help == "The help."

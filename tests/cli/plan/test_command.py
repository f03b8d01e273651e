"""``millstream plan``: its output and its errors."""

from __future__ import annotations

import json

import pytest


def test_the_command_shows_both(quick_command) -> None:
    found = quick_command("plan")
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["compressed", "to", "0.75", "2.31", "TB", "2.25", "TB"] in lines
    assert ["brokers", "for", "one", "copy", "10", "10"] in lines
    assert ["brokers", "for", "3", "copies", "29", "30"] in lines


def test_json_is_of_whole_numbers(quick_command) -> None:
    shown = quick_command(
        "plan", "--retention", "36h", "--overhead", "1/3", "--format", "json"
    ).stdout
    numbers = [number for part in json.loads(shown).values() for number in part.values()]
    assert all(isinstance(number, int) for number in numbers), shown
    assert json.loads(shown)["brokers"]["bits_per_s"] == 2_222_222_222
    assert (
        json.loads(quick_command("plan", "--format", "json").stdout)["disk"]["exact_bytes"]
        == 2_310_000_000_000
    )


def test_units_and_json(quick_command) -> None:
    words = (
        "--messages-per-day",
        "1M",
        "--message-size",
        "2KB",
        "--replicas",
        "3",
        "--retention",
        "1w",
        "--overhead",
        "0",
    )
    found = json.loads(
        quick_command(
            "plan", *words, "--compression", "50%", "--nic", "10Gbps", "--format", "json"
        ).stdout
    )
    assert found["disk"]["exact_bytes"] == 1e6 * 2e3 * 3 * 7 / 2
    assert found["brokers"]["exact"] == 1


@pytest.mark.parametrize(
    "words", [("--nic", "fast"), ("--usable", "3"), ("--retention", "soon"), ("--reserve", "1")]
)
def test_misuse(quick_command, words) -> None:
    found = quick_command("plan", *words)
    assert (found.returncode, found.stdout) == (2, "")

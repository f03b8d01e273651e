"""Options of the driver's JVM."""

from __future__ import annotations

import pytest

from millstream.client.errors import ClientError
from millstream.spark.jvm_options import EXTRA, SETTING, driver_options

ARCHIVE = ("-XX:SharedArchiveFile=/cache/classes.jsa", "-Xshare:auto")


def test_peak_jvm_without_an_archive_has_no_options() -> None:
    assert driver_options({}, ()) == {}
    assert driver_options({SETTING: "peak"}, ()) == {}


def test_quick_jvm_stops_at_the_first_compiler() -> None:
    assert driver_options({SETTING: "quick"}, ()) == {EXTRA: "-XX:TieredStopAtLevel=1"}


def test_options_of_the_user_come_last() -> None:
    options = driver_options({SETTING: "quick", EXTRA: "-XX:TieredStopAtLevel=4"}, ARCHIVE)
    assert options == {
        EXTRA: " ".join([*ARCHIVE, "-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4"])
    }


def test_archive_of_the_user_replaces_ours() -> None:
    chosen = "-XX:ArchiveClassesAtExit=/elsewhere.jsa"
    assert driver_options({EXTRA: chosen}, ARCHIVE) == {EXTRA: chosen}


def test_unknown_jvm_profile_is_rejected_with_the_choices() -> None:
    with pytest.raises(ClientError, match=r"spark\.millstream\.jvm is 'fast'") as refused:
        driver_options({SETTING: "fast"}, ())
    assert refused.value.hint is not None
    assert "quick" in refused.value.hint


def test_path_with_spaces_is_one_option() -> None:
    options = driver_options({}, ("-XX:SharedArchiveFile=/my cache/a.jsa",))
    assert options == {EXTRA: '"-XX:SharedArchiveFile=/my cache/a.jsa"'}

"""Finding a Java that is new enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.client import java
from millstream.client.java import NoJava, find_java, java_version


def java_home(directory: Path, version: str, *, release: bool = False) -> Path:
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    if release:
        program.write_text("#!/bin/sh\nexit 1\n")
        (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25)]
)
def test_java_versions_are_parsed(tmp_path: Path, text: str, major: int, release: bool) -> None:
    assert (
        java_version(java_home(tmp_path / "jdk", text, release=release) / "bin" / "java") == major
    )


def test_first_java_that_is_new_enough_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = java_home(tmp_path / "old", "11.0.2"), java_home(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    java_found = find_java("ZooKeeper")
    assert (java_found.home, java_found.version) == (new, 17)
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "newer", "21")))
    assert find_java("ZooKeeper").version == 21


def test_error_without_a_new_enough_java_names_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{java_home(tmp_path / 'old', '11.0.2') / 'bin'}:/nowhere")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoJava) as caught:
        find_java("ZooKeeper")
    message = str(caught.value)
    assert message.startswith("ZooKeeper needs Java 17 or later (JAVA_HOME=")
    assert "has no working java" in message and "has Java 11" in message
    assert 'pip install "millstream[spark]"' in message

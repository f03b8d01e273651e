"""Installation of completion scripts. tests/cli/test_main.py runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.main import main
from millstream.cli.support.completion import SHELLS


@pytest.mark.parametrize(
    ("shell", "startup"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", "")]
)
def test_installed_once_beside_what_the_user_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shell: str,
    startup: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if startup:
        (tmp_path / startup).write_text("alias ll='ls -l'\n")
    assert main(["--install-completion", shell]) == main(["--install-completion", shell]) == 0
    assert f"{shell} completion installed in {tmp_path}" in capsys.readouterr().out
    assert (tmp_path / SHELLS[shell].file).read_text() == SHELLS[shell].script
    if startup:
        line = SHELLS[shell].startup_line
        assert (tmp_path / startup).read_text() == f"alias ll='ls -l'\n{line}\n"


def test_shell_of_the_user_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["--show-completion"]) == 0
    assert "complete_fish" in capsys.readouterr().out


def test_unknown_instruction_is_misuse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_MILLSTREAM_COMPLETE", "complete_csh")
    assert main([]) == 2
    assert "complete_csh" in capsys.readouterr().err

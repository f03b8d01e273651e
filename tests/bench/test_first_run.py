"""`make first-run` on a small repository whose targets take no time."""

import json
import subprocess
from pathlib import Path

import pytest

from bench import first_run

MAKEFILE = """\
setup setup-spark:
\t@touch installed
demo: setup
\t@echo 'flow   in rows/s'; echo 'paid   1'; sleep 0.5; echo over; test ! -e {broken}
test: setup
\t@exit 0
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "Makefile").write_text(MAKEFILE.format(broken=tmp_path / "broken"))
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "c"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder


def run(repository: Path, tmp_path: Path, *words: str) -> tuple[int, list[dict[str, object]]]:
    results, scratch = tmp_path / "results" / "runs.jsonl", tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    arguments = [
        "--repository",
        str(repository),
        "--results",
        str(results),
        "--scratch",
        str(scratch),
        *words,
    ]
    code = first_run.main(arguments)
    return code, first_run.read_records(results)


def test_runs_are_recorded_and_not_repeated(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, records = run(repository, tmp_path, "--runs", "2", "--busy", "1", "--tests", "1")
    assert code == 0
    assert [(record["command"], record["load"], record["exit_code"]) for record in records] == [
        ("make demo", "none", 0),
        ("make demo", "2 busy loops", 0),
        ("make test", "2 busy loops", 0),
    ]
    commit = first_run.git("rev-parse", "HEAD", cwd=repository)
    assert {record["commit"] for record in records} == {commit}
    assert (
        all("first_row_seconds" in record for record in records[:2])
        and "first_row_seconds" not in records[2]
    )
    assert "make demo  2 busy loops  1 of 1" in capsys.readouterr().out
    assert list((tmp_path / "scratch").iterdir()) == []
    _, again = run(repository, tmp_path, "--runs", "3", "--busy", "1", "--tests", "1")
    assert len(again) == 4 and again[:3] == records
    assert again[3]["number"] == 2


def test_failed_run_is_recorded_with_its_tail_and_kept(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    code, (record,) = run(repository, tmp_path, "--runs", "1", "--busy", "0", "--tests", "0")
    assert code == 1 and record["exit_code"] == 2
    assert "over" in record["tail"]  # type: ignore[operator]
    assert (Path(str(record["kept"])) / "demo.log").exists()


def test_truncated_line_does_not_affect_the_next(tmp_path: Path) -> None:
    results = tmp_path / "runs.jsonl"
    results.write_text('{"commit": "a"}\n{"comm')
    first_run.append_record(results, {"commit": "b"})
    assert [record["commit"] for record in first_run.read_records(results)] == ["a", "b"]
    assert json.loads(results.read_text().splitlines()[-1]) == {"commit": "b"}


def test_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    ended = first_run.run_command(["sleep", "60"], tmp_path, {}, 0.2, tmp_path / "log")
    assert ended.exit_code == first_run.TIMED_OUT and ended.seconds < 30


def test_busy_runs_are_part_of_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert [planned for _, planned in first_run.plan(20, 10, 5)] == [10, 10, 5]
    with pytest.raises(SystemExit):
        first_run.arguments(["--runs", "2", "--busy", "3"])
    assert "--busy 3 is not between 0 and --runs 2" in capsys.readouterr().err

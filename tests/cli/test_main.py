"""Help, version, routing, misuse and completion: what needs no broker."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from millstream import __version__
from millstream.cli.commands import COMMANDS
from millstream.cli.main import main
from millstream.cli.pipeline.run import spark_session
from millstream.core.words import counted, listed


def test_help_lists_every_command_and_the_options_of_serve(command):
    shown = command("--help", text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    for one in COMMANDS:
        assert f"\n  {one.name} " in shown.stdout
    assert "--config FILE" in shown.stdout and "--set NAME=VALUE" in shown.stdout
    assert command(text=True).stdout == shown.stdout


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(command, word: str):
    shown = command(word, text=True)
    assert (shown.stdout, shown.returncode) == (f"millstream {__version__}\n", 0)


def test_version_in_json(command):
    shown = command("version", "--format", "json", text=True)
    assert (json.loads(shown.stdout), shown.returncode) == ({"version": __version__}, 0)


@pytest.mark.parametrize("words", ["[]", "['--help']", "['version']"])
def test_help_and_version_load_nothing_heavy(words: str):
    assert _loaded_by(f"millstream.cli.main.main({words})") == set()


def test_help_imports_four_modules_and_a_little_of_the_standard_library():
    """Half of the time that help may take is Python's own start. Whoever adds an import here should
    know.
    """
    program = (
        "import sys; before = set(sys.modules); import millstream.cli.main; millstream.cli.main.main(['--help']);"
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ran.stderr.split())
    ours = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert ours <= {
        "millstream",
        "millstream.cli",
        "millstream.cli.main",
        "millstream.cli.commands",
    }
    assert not loaded & {
        "argparse",
        "asyncio",
        "dataclasses",
        "inspect",
        "json",
        "logging",
        "pathlib",
        "socket",
        "subprocess",
    }


def test_serve_is_routed_before_the_command_line():
    """The broker's own start must not pay for the command line."""
    stub = "sys.modules['millstream.broker.main'] = types.SimpleNamespace(serve_command=lambda words: print(words) or 7)"
    assert (
        _loaded_by(f"{stub}; assert millstream.cli.main.main(['serve', '--set', 'a=b']) == 7")
        == set()
    )


def _loaded_by(code: str) -> set[str]:
    heavy = "{'click', 'confluent_kafka', 'asyncio'}"
    program = f"import sys, types, millstream.cli.main; {code}; print(*{heavy} & sys.modules.keys(), file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(ran.stderr.split())


@pytest.mark.parametrize("name", [one.name for one in COMMANDS if one.name != "serve"])
def test_every_command_has_help(quick_command, name: str):
    shown = quick_command(name, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Usage: millstream {name}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["topcis"], "No such command 'topcis'. Did you mean 'topics'?"),
        (["topics", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["topics", "create"], "Missing argument"),
        (
            ["topics", "create", "a", "--partitions", "many"],
            "Invalid value for '--partitions' / '-p': 'many' is not a whole number",
        ),
        (["topics", "create", "a", "-p", "0"], "0 is out of range: must be at least 1"),
        (["up", "--port", "99999"], "99999 is out of range: must be at most 65535"),
        (["consume", "a", "--timeout", "soon"], "'soon' is not a number"),
        (["topics", "create", "a", "--config", "retention.ms"], "'retention.ms' is not NAME=VALUE"),
        (["topics", "create", "a", "--replica-assignment", "x"], "'x' is not of the form 0:1,1:0"),
        (["topics", "alter", "a"], "give --partitions, --config or --delete-config"),
        (
            ["topics", "list", "--format", "xml"],
            "Invalid value for '--format': 'xml' is not one of",
        ),
        (["-b", "host:1"], "error: -b must come after the command: "),
        (["--bootstrap=host:1", "topcis"], "error: --bootstrap must come after the command"),
        (
            ["-b", "host:1", "topics", "list"],
            "error: -b must come after `topics`: `millstream topics list -b host:1`",
        ),
        (
            ["topics", "--bootstrap=host:1", "describe", "my topic"],
            "--bootstrap must come after `describe`: `millstream topics describe 'my topic' --bootstrap=host:1`",
        ),
        (["--format", "json", "serve"], "`millstream serve --format json`"),
        (["configs", "describe", "zoo", "a"], "'topic', 'broker', 'group'"),
        (["configs", "alter", "topic", "a"], "give --set, --delete, --append or --subtract"),
        (["produce", "a", "--file", "/no/such/file"], "does not exist"),
        (["produce", "a", "-c", "rar"], "Invalid value for '--compression'"),
        (["produce", "a", "--acks", "2"], "'2' is not all, 1 or 0"),
        (["produce", "a", "--delimiter", ""], "must not be empty"),
        (["produce", "a", "--format", "json", "-K", ":"], "has no effect with --format json"),
        (["produce", "a", "--format", "json", "--null", "-"], "has no effect with --format json"),
        (["produce", "a", "--format", "whole", "-D", ";"], "has no effect with --format whole"),
        (["consume"], "Missing argument"),
        (["consume", "a", "--from", "soon"], "'soon' is not a position to read from"),
        (["consume", "a", "-f", "%q"], "unknown format %q"),
        (
            ["consume", "a", "--isolation", "dirty"],
            "'dirty' is not read_committed or read_uncommitted",
        ),
        (["log", "dump", "/no/such/file"], "does not exist"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_misuse_exits_2_and_says_what_is_wrong(quick_command, words: list[str], complaint: str):
    ran = quick_command(*words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["produce", "a"],
        ["consume", "a", "-e"],
        ["configs", "describe", "topic", "a"],
    ],
)
def test_no_broker_is_one_line_and_exit_1(quick_command, words: list[str]):
    ran = quick_command(*words, "--bootstrap", "127.0.0.1:1", stdin="x\n")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: cannot reach a broker (127.0.0.1:1: connection refused); start one with `millstream serve`, "
        "or give the address of yours (--bootstrap, MILLSTREAM_BOOTSTRAP)\n"
    )


def _complete(*words: str, bootstrap: str = "127.0.0.1:1") -> set[str]:
    """What bash would be offered after these words."""
    line = {"COMP_WORDS": "\n".join(("millstream", *words)), "COMP_CWORD": str(len(words))}
    more = {"_MILLSTREAM_COMPLETE": "complete_bash", "MILLSTREAM_BOOTSTRAP": bootstrap} | line
    ran = subprocess.run(
        [sys.executable, "-m", "millstream"],
        capture_output=True,
        text=True,
        env=os.environ | more,
        check=True,
    )
    return set(ran.stdout.split())


def test_the_shell_completes_commands_and_verbs():
    assert _complete("") >= {one.name for one in COMMANDS}
    assert _complete("topics", "de") == {"describe", "delete"}
    assert _complete("serve", "--") >= {"--config", "--set"}


def test_zsh_completes_too():
    more = {"_MILLSTREAM_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "millstream topics de"}
    ran = subprocess.run(
        [sys.executable, "-m", "millstream"], capture_output=True, text=True, env=os.environ | more
    )
    assert "describe" in ran.stdout and "delete" in ran.stdout and "list" not in ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_are_printed(shell: str):
    more = {"_MILLSTREAM_COMPLETE": f"source_{shell}"}
    ran = subprocess.run(
        [sys.executable, "-m", "millstream"], capture_output=True, text=True, env=os.environ | more
    )
    assert f"complete_{shell}" in ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_those_of_the_shell_that_is_named(shell: str, capsys):
    assert main(["--show-completion", shell]) == 0
    shown = capsys.readouterr().out
    assert f"complete_{shell}" in shown and "_MILLSTREAM_COMPLETE" in shown


def test_a_shell_that_is_not_known_is_misuse(capsys):
    assert main(["--show-completion", "fsh"]) == 2
    said = "error: no completion for 'fsh'; choose one of bash, zsh, fish\n"
    assert capsys.readouterr() == ("", said)


def test_bash_completes_with_the_script_that_is_printed(topic: str, shared_broker):
    """As a user who has `eval "$(_MILLSTREAM_COMPLETE=source_bash millstream)"` in his .bashrc and
    presses Tab.
    """
    words = [["millstream", "topics", "de"], ["millstream", "consume", topic[:-2]]]
    presses = [
        f"COMP_WORDS=({' '.join(one)}); COMP_CWORD={len(one) - 1}; COMPREPLY=(); _millstream_completion millstream; echo ${{COMPREPLY[@]}}"
        for one in words
    ]
    script = "\n".join(
        [
            'eval "$(_MILLSTREAM_COMPLETE=source_bash millstream)"',
            "complete -p millstream",
            *presses,
        ]
    )
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path, "MILLSTREAM_BOOTSTRAP": shared_broker.bootstrap},
    )
    registered, verbs, topics = ran.stdout.splitlines()
    assert registered.startswith("complete ") and "_millstream_completion" in registered
    assert sorted(verbs.split()) == ["delete", "describe"]
    assert topics == topic


def test_the_shell_completes_topic_names(topic: str, shared_broker):
    assert _complete("consume", topic[:-2], bootstrap=shared_broker.bootstrap) == {topic}
    assert _complete("consume", topic[:-2]) == set()


def test_numbers_agree_with_their_nouns():
    assert counted(1, "broker") == "1 broker"
    assert counted(0, "partition has", "partitions have") == "0 partitions have"
    assert counted(1000, "record") == "1,000 records"
    assert (listed([1], "broker"), listed([1, 2], "broker")) == ("broker 1", "brokers 1, 2")


@pytest.mark.parametrize("terminal", [True, False])
def test_start_of_spark_is_told_on_a_terminal(monkeypatch, capsys, terminal: bool):
    pytest.importorskip("pyspark")
    monkeypatch.setattr("millstream.spark.session.session", lambda *_words, **_named: MagicMock())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with spark_session("orders", "local[1]"):
        assert capsys.readouterr().err == (
            "starting Spark, which takes a few seconds ...\n" if terminal else ""
        )


def test_help_lists_every_verb():
    """The verbs also decide where an option stands before one."""
    for command in COMMANDS:
        verbs = [verb.strip() for verb in command.verbs.split("|")]
        if not all(re.fullmatch("[a-z][a-z-]*", verb) for verb in verbs):
            continue
        module = importlib.import_module(command.module)
        group = module.app.build()
        if hasattr(group, "commands"):
            assert sorted(group.commands) == sorted(verbs), command.name

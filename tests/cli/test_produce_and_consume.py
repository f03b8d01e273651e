"""``millstream produce`` and ``millstream consume`` against a broker."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import produce as cli_produce
from millstream.cli.app import run
from millstream.client import Admin, consume, produce, producer
from millstream.testing import broker as start_broker

MILLSTREAM = [sys.executable, "-m", "millstream"]


def test_lines_with_keys_headers_and_nulls(millstream, topic: str):
    sent = millstream(
        *(
            "produce",
            topic,
            "-K",
            ":",
            "-H",
            "source=test",
            "-H",
            "empty=",
            "--null",
            "NULL",
            "-p",
            "1",
            "-c",
            "zstd",
        ),
        stdin="a:1\nb:2:3\nno key\nc:NULL\nNULL:4\n\n",
    )
    assert (sent.returncode, sent.stdout) == (0, "")
    assert sent.stderr.startswith(f"sent 6 records to {topic} in ")
    shown = millstream("consume", topic, "--exit", "-f", r"%p %o %k|%K %s|%S %h\n")
    assert shown.stdout.splitlines() == [
        "1 0 a|1 1|1 source=test,empty=",
        "1 1 b|1 2:3|3 source=test,empty=",
        "1 2 |-1 no key|6 source=test,empty=",
        "1 3 c|1 |-1 source=test,empty=",
        "1 4 |-1 4|1 source=test,empty=",
        "1 5 |-1 |0 source=test,empty=",
    ]
    assert (shown.stderr, shown.returncode) == ("", 0)


def test_bytes_pass_unchanged(shared_broker, topic: str, command, tmp_path: Path):
    blob = bytes(range(256)) * 3000
    (tmp_path / "blob").write_bytes(blob)
    options = {"bootstrap": shared_broker.bootstrap}
    sent = command(
        "produce",
        topic,
        "--file",
        str(tmp_path / "blob"),
        "--format",
        "whole",
        "-k",
        "blob",
        "-q",
        **options,
    )
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"", b"")
    assert command("consume", topic, "-e", "-f", "%s", **options).stdout == blob


def test_files_and_other_delimiters(millstream, topic: str, tmp_path: Path):
    (tmp_path / "one").write_text("a;b;c")
    (tmp_path / "two").write_text("d;")
    files = ("--file", str(tmp_path / "one"), "--file", str(tmp_path / "two"))
    assert (
        millstream(
            "produce", topic, *files, "--delimiter", ";", "-p", "0", "--acks", "1"
        ).returncode
        == 0
    )
    assert millstream("consume", topic, "-e").stdout.splitlines() == ["a", "b", "c", "d"]


def test_json_goes_round(millstream, shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, [("k", b"\xff\x00"), (None, "text"), ("gone", None)])
    first = millstream("consume", topic, "-e", "--json").stdout
    shapes = [
        {"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"}
    ] * 3
    assert [set(json.loads(line)) for line in first.splitlines()] == shapes
    assert (
        millstream("produce", topic, "--format", "json", "-p", "0", "-q", stdin=first).returncode
        == 0
    )
    records = consume(shared_broker.bootstrap, topic, n=6)
    twice = sorted([(repr(one.key), repr(one.value), one.timestamp_ms) for one in records])
    assert twice[::2] == twice[1::2]
    bad = millstream("produce", topic, "--format", "json", stdin="{\n")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("error: line 1: not a record in JSON ")


def test_bad_json_line_is_named_and_what_was_before_it_is_sent(
    millstream, shared_broker, topic: str
):
    lines = '{"key": "ada", "value": 1}\n\n{"key": "ada", "vlaue": 2}\n{"value": 3}\n'
    bad = millstream("produce", topic, "--format", "json", stdin=lines)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr == (
        'error: line 3: unknown name "vlaue" in {"key": "ada", "vlaue": 2}; 1 earlier record was sent; '
        'did you mean "value"?\n'
    )
    assert [one.value for one in consume(shared_broker.bootstrap, topic)] == [b"1"]


def test_repeated_headers_are_all_sent(millstream, shared_broker, topic: str):
    assert millstream("produce", topic, "-H", "h=1", "-H", "h=2", stdin="x\n").returncode == 0
    (record,) = consume(shared_broker.bootstrap, topic)
    assert record.headers == (("h", b"1"), ("h", b"2"))


def test_positions_counts_and_partitions(millstream, shared_broker, topic: str):
    produce(
        shared_broker.bootstrap,
        topic,
        [str(n) for n in range(10)],
        options={"partitioner": "consistent"},
    )
    partition = str(consume(shared_broker.bootstrap, topic, n=1)[0].partition)
    other = str((int(partition) + 1) % 3)
    assert millstream("consume", topic, "-e", "--from", "-2").stdout == "8\n9\n"
    assert millstream("consume", topic, "--from", "3", "-n", "2").stdout == "3\n4\n"
    assert (
        millstream("consume", topic, "-e", "--from", "-1h", "-p", partition, "-n", "1").stdout
        == "0\n"
    )
    assert millstream("consume", topic, "-e", "-p", other).stdout == ""
    assert millstream("consume", topic, "-e", "--from", "latest").stdout == ""


def test_time_without_a_zone_is_read_as_local_and_told(millstream, topic: str):
    shown = millstream("consume", topic, "-e", "--from", "2026-03-01T12:00")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert re.fullmatch(
        r"using local time for 2026-03-01T12:00: 2026-03-01T12:00:00[+-]\d\d:\d\d; "
        r"for UTC write 2026-03-01T12:00:00Z\n",
        shown.stderr,
    )
    date = millstream("consume", topic, "-e", "--from", "2026-03-01").stderr
    advice = date.rpartition(" ")[2].strip()  # a date alone takes no Z
    assert millstream("consume", topic, "-e", "--from", advice).stderr == ""
    for words in (["-q", "--from", "2026-03-01T12:00"], ["--from", "2026-03-01T12:00Z"]):
        assert millstream("consume", topic, "-e", *words).stderr == ""
    reset = (
        "groups",
        "reset-offsets",
        topic,
        "--topic",
        topic,
        "--to-datetime",
        "2026-03-01T12:00",
    )
    assert "using local time for 2026-03-01T12:00" in millstream(*reset).stderr


def test_errors_of_records_are_one_line(millstream, topic: str):
    for words, complaint in (
        (
            ("consume", topic + "x"),
            f"error: topic '{topic}x' does not exist; did you mean '{topic}'",
        ),
        (
            ("consume", topic, "-p", "7"),
            f"error: topic '{topic}' has no partition 7; its partitions are 0 to 2\n",
        ),
        (("produce", topic, "-p", "7"), f"error: topic '{topic}' has no partition 7; "),
        (
            ("produce", topic, "-X", "no.such=1"),
            'error: the client options are invalid: No such configuration property: "no.such"',
        ),
    ):
        ran = millstream(*words, stdin="x\n")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(complaint)
        assert ran.stderr.count("\n") == 1


def test_a_refused_record_exits_1(millstream, topic: str):
    millstream("configs", "alter", "topic", topic, "-s", "max.message.bytes=100")
    ran = millstream("produce", topic, stdin="x" * 500 + "\n")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: cannot produce to '{topic}': ")
    assert "max.message.bytes" in ran.stderr and ran.stderr.count("\n") == 1


def test_a_record_is_not_waited_for_longer_than_the_timeout_that_was_given(
    quick_command, topic_name: str
):
    with start_broker() as kafka:
        kafka.faults.error("Produce", "NOT_ENOUGH_REPLICAS", times=None)
        begun_s = time.monotonic()
        late = quick_command(
            "produce", topic_name, "--timeout", "1", bootstrap=kafka.bootstrap, stdin="a\n"
        )
        assert time.monotonic() - begun_s < 20  # and not 120
    assert (late.returncode, late.stdout) == (1, "")
    assert late.stderr.startswith(f"error: cannot produce to '{topic_name}': not written in time")
    assert "`millstream doctor`" in late.stderr


@pytest.mark.parametrize(("words", "milliseconds"), [((), 120_000), (("--timeout", "2.5"), 2500)])
def test_without_a_timeout_a_record_has_the_time_of_every_producer(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], milliseconds: int
):
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(producer, "Producer", lambda bootstrap, **options: made.append(options))
    monkeypatch.setattr(cli_produce, "_send_all", lambda *arguments: None)
    assert run(["produce", "orders", *words]) == 0
    assert [options["delivery_timeout_ms"] for options in made] == [milliseconds]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_formats_are_those_of_kcat(millstream, command, shared_broker, topic: str):
    words = ("-K", ":", "-H", "a=1", "-H", "b=x y", "--null", "-", "-p", "2")
    assert millstream("produce", topic, *words, stdin="k:v\n-:w\nn:-\n").returncode == 0
    format = r"%t[%p] %o <%k|%K> <%s|%S> %h %T%R\x21\t\n"
    bootstrap = shared_broker.bootstrap
    ours = command("consume", topic, "-p", "2", "-e", "-f", format, bootstrap=bootstrap).stdout
    kcat = ["kcat", "-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-p", "2", "-f", format]
    assert ours == subprocess.run(kcat, capture_output=True, timeout=60).stdout
    assert ours.count(b"\n") == 3


def test_a_reader_that_goes_away_is_no_error(shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, ["x" * 1000] * 2000)
    with subprocess.Popen(
        [*MILLSTREAM, "consume", topic, "-e", "-b", shared_broker.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def stop_following(bootstrap: str, topic: str, number: signal.Signals, *words: str) -> None:
    """It ends without a word, as Ctrl-C does."""
    produce(bootstrap, topic, ["hello"])
    with subprocess.Popen(
        [*MILLSTREAM, "consume", topic, *words, "-b", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"hello\n"
        process.send_signal(number)
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        assert process.wait(60) == 130


def test_ctrl_c_ends_following_quietly(shared_broker, topic: str):
    stop_following(shared_broker.bootstrap, topic, signal.SIGINT)


def test_a_member_that_is_told_to_stop_leaves_its_group(shared_broker, topic: str):
    stop_following(shared_broker.bootstrap, topic, signal.SIGTERM, "--group", f"{topic}-readers")
    with Admin(shared_broker.bootstrap) as admin:
        (group,) = admin.groups.describe([f"{topic}-readers"])
    assert (group.state, list(group.members)) == ("Empty", [])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_pattern_of_a_group_leaves_out_internal_topics(millstream, protocol: str):
    with start_broker() as own:
        own.produce("orders", ["1"])
        shown = millstream(
            *("consume", "^.*", "--group", "readers", "--exit", "-f", r"%t %s\n"),
            *("-X", f"group.protocol={protocol}", "-b", own.bootstrap),
        )
        internal = [name for name in own.admin.topics.names() if name.startswith("__")]
    assert (shown.returncode, shown.stdout) == (0, "orders 1\n")
    assert "__consumer_offsets" in internal


def test_ctrl_c_sends_what_was_read(shared_broker, topic: str):
    with subprocess.Popen(
        [*MILLSTREAM, "produce", topic, "-b", shared_broker.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        consume(shared_broker.bootstrap, topic, n=2, timeout_s=60)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().startswith(b"sent 2 records to ")
        assert process.wait(60) == 130


def test_following_prints_each_record_at_once(shared_broker, topic: str):
    with subprocess.Popen(
        [*MILLSTREAM, "consume", topic, "-n", "2", "-b", shared_broker.bootstrap],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        for value in ("first", "second"):
            produce(shared_broker.bootstrap, topic, [value])
            assert process.stdout.readline() == f"{value}\n".encode()
        assert process.wait(60) == 0


def test_a_person_sees_progress_on_big_inputs(shared_broker, topic: str, tmp_path: Path):
    """Progress goes to stderr when that is a terminal, and is gone from the line at the end."""
    lines = tmp_path / "lines"
    with lines.open("w") as file:
        file.writelines(f"{number}\n" for number in range(300_000))
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*MILLSTREAM, "produce", topic, "--file", str(lines), "-b", shared_broker.bootstrap],
        stderr=terminal,
    )
    os.close(terminal)
    shown = _read_screen(screen)
    assert process.wait(60) == 0
    assert " records, " in shown
    assert shown.rstrip().rpartition("\r")[2].startswith(f"sent 300,000 records to {topic} in ")


def _read_screen(screen: int) -> str:
    """Everything until the other side closes, which a pty reports as an error."""
    shown = b""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            chunk = os.read(screen, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(screen)
    return shown.decode()

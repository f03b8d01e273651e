"""``millstream sql`` as a user meets it: one command, a script, a prompt; and flows that survive
kill -9.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.sql.catalog import CatalogTopic, Column, Source, StoredFlow

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 60.0
ORDERS = Source(
    "stream", "orders", (Column("id", "string"),), {"topic": "the-orders", "value": "json"}
)


@pytest.fixture
def catalog(shared_broker, topic_name: str) -> str:
    CatalogTopic(shared_broker.bootstrap, topic_name).put(ORDERS)
    return topic_name


def test_a_statement_from_the_command_line_from_a_file_and_from_stdin(
    millstream, catalog: str, tmp_path: Path
) -> None:
    shown = "NAME    KIND    TOPIC       VALUE  KEY  COLUMNS\norders  stream  the-orders  json   -    1\n"
    done = millstream("sql", "SHOW TABLES", "--catalog", catalog)
    assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)
    script = tmp_path / "script.sql"
    script.write_text("-- twice\nSHOW TABLES;\n\nSHOW STREAMS")
    done = millstream("sql", "--catalog", catalog, "-f", str(script))
    assert (done.stdout, done.stderr, done.returncode) == (shown + shown, "", 0)
    done = millstream("sql", "--catalog", catalog, "--format", "json", stdin="SHOW TABLES;")
    assert json.loads(done.stdout)[0] == {
        "name": "orders",
        "kind": "stream",
        "topic": "the-orders",
        "value": "json",
        "key": [],
        "columns": 1,
    }


def test_a_script_stops_at_its_first_mistake_and_says_where(
    millstream, catalog: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.sql"
    script.write_text("DROP TABLE IF EXISTS x;\n\nSHOW TABELS;\nDROP STREAM orders;")
    done = millstream("sql", "--catalog", catalog, "-f", str(script))
    assert (done.stdout, done.returncode) == ("there is no table x\n", 1)
    assert done.stderr == (
        f"error: {script}:3: TABLES, STREAMS, TOPICS or FLOWS is expected\n  SHOW TABELS\n       ^^^^^^\n"
    )
    assert millstream("sql", "--catalog", catalog, " ; ").stderr.startswith(
        "error: no statement given"
    )
    assert millstream("sql", "-f", str(tmp_path / "none.sql")).returncode == 1
    assert millstream("sql", "SHOW TABLES", "-f", str(script)).returncode == 2


def test_a_run_without_flows_says_so(millstream, catalog: str) -> None:
    done = millstream("sql", "run", "--once", "--catalog", catalog)
    assert (done.returncode, done.stderr) == (
        1,
        "error: no flows; create one: INSERT INTO name SELECT ...\n",
    )
    done = millstream("sql", "run", "nosuch", "--catalog", catalog)
    assert (done.returncode, done.stderr) == (
        1,
        "error: there is no flow 'nosuch'; nothing is declared yet\n",
    )


class Terminal:
    """A command that believes a person is there."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execvpe(sys.executable, [sys.executable, "-m", "millstream", *words], environment)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C at rest: one that comes while Python's readline takes in a key is only looked at
        with the next key.
        """
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        self.type("\x03")

    def until(self, text: str) -> str:
        """What is printed up to this text."""
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline_s, f"{text!r} did not come: {self.seen!r}"
            if select.select([self._fd], [], [], 1.0)[0]:
                try:
                    self.seen += os.read(self._fd, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended without {text!r}: {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before

    def end(self) -> int:
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._fd)


@pytest.fixture
def terminal(shared_broker, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []
    environment = os.environ | {
        "MILLSTREAM_BOOTSTRAP": shared_broker.bootstrap,
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "dumb",
    }

    def start(*words: str) -> Terminal:
        started.append(Terminal(list(words), environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_the_prompt_reads_over_lines_and_keeps_its_history(
    terminal: Callable[..., Terminal], catalog: str, tmp_path: Path
) -> None:
    prompt = terminal("sql", "--catalog", catalog)
    prompt.until("sql> ")
    prompt.type("SHOW\n")
    prompt.until("...> ")
    prompt.type("TABLES; SHOW TABELS;\n")
    assert "the-orders" in prompt.until("error: ")
    prompt.until("sql> ")
    prompt.type("DROP STREAM orders")
    prompt.until("orders")
    prompt.interrupt()  # what is half typed is thrown away
    prompt.until("sql> ")
    prompt.type("help\n")
    prompt.until("EMIT CHANGES")
    prompt.until("sql> ")
    prompt.type("\\q\n")
    assert prompt.end() == 0
    history = (tmp_path / "millstream" / "sql_history").read_text()
    assert "TABLES; SHOW TABELS;" in history


@pytest.mark.long
def test_ctrl_c_stops_the_live_query_and_not_the_prompt(
    terminal: Callable[..., Terminal], topic: str, shared_broker, catalog: str
) -> None:
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, b'{"id": "first"}')
    prompt = terminal("sql", "--catalog", catalog, "--master", "local[2]")
    prompt.until("sql> ")
    prompt.type(f"CREATE STREAM s WITH (topic = '{topic}');\n")
    assert "id STRING" in prompt.until("create it? [y/N] ")
    prompt.type("y\n")
    prompt.until("stream s created")
    prompt.type("SELECT id FROM s EMIT CHANGES;\n")
    prompt.until("first")
    prompt.interrupt()
    prompt.until("sql> ")
    prompt.type("SELECT concat('still', ' there') AS x;\n")
    prompt.until("still there")
    prompt.type("\\q\n")
    assert prompt.end() == 0


@pytest.mark.long
def test_a_flow_goes_on_where_it_was_after_kill_9(
    shared_broker, topic: str, catalog: str, tmp_path: Path
) -> None:
    bootstrap, out = shared_broker.bootstrap, f"{topic}-out"
    columns = (Column("n", "int"),)
    entries = CatalogTopic(bootstrap, catalog)
    given = {"value": "json", "source.maxOffsetsPerTrigger": "50", "dead_letters": "false"}
    entries.put(
        Source("stream", "numbers", columns, {"topic": topic} | given),
        Source("stream", "doubled", columns, {"topic": out, "value": "json"}),
        StoredFlow("doubled", "doubled", "SELECT 2 * n FROM numbers"),
    )
    with Producer(bootstrap) as producer:
        for number in range(1000):
            producer.send(topic, b'{"n":%d}' % number)

    def written() -> list[int]:
        with Admin(bootstrap) as admin:
            if out not in admin.topics.names():
                return []
        with Consumer(bootstrap, out, until_end=True) as consumer:
            return [json.loads(one.value or b"")["n"] for one in consumer]

    for least in (50, 300):
        words = ["sql", "run", "--catalog", catalog, "--master", "local[2]", "--format", "json"]
        with (tmp_path / "run.log").open("ab") as log:
            runner = subprocess.Popen(
                [sys.executable, "-m", "millstream", *words, "--bootstrap", bootstrap],
                cwd=tmp_path,
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + PATIENCE_S
        while len(written()) < least:
            assert time.monotonic() < deadline_s and runner.poll() is None, (
                tmp_path / "run.log"
            ).read_text()
            time.sleep(0.1)
        runner.kill()
        runner.wait()
    words = [*words[:2], "--once", *words[2:]]
    assert (
        subprocess.run(
            [sys.executable, "-m", "millstream", *words, "--bootstrap", bootstrap], cwd=tmp_path
        ).returncode
        == 0
    )
    assert sorted(written()) == [2 * number for number in range(1000)]

"""``millstream demo`` tells a true story and leaves nothing behind."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from millstream.cli.demo.broker import CODECS


def test_the_demo_finds_nothing_lost_and_cleans_up(command, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = command("demo", "--broker", "--records", "3000", text=True)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert "FAILED" not in ran.stdout
    for codec in CODECS:
        assert re.search(rf"^ orders-{codec} +3,000 +[\d,]+/s +[\d,]+/s   OK$", ran.stdout, re.M)
    assert re.search(r"kill -9 after [\d,]+ acknowledged records", ran.stdout)
    assert "3,000 sent, 0 lost, 0 duplicates" in ran.stdout
    assert len(re.findall(r"\bOK$", ran.stdout, re.M)) == len(CODECS) + 3
    assert list(tmp_path.iterdir()) == []
    port = re.search(r"PLAINTEXT://127\.0\.0\.1:(\d+)", ran.stdout)
    assert port is not None
    assert not _listens(int(port[1]))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""The programs of docs/mirroring.md run unchanged, between two brokers with other names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from millstream.client.admin.client import Admin
from millstream.client.producer import Producer
from millstream.local.broker import LocalBroker
from support.connect.mirror_world import count

DOCUMENT = Path(__file__).parents[3] / "docs" / "mirroring.md"


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_programs_of_the_document_mirror_records(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "east") as east, LocalBroker(tmp_path / "west") as west:
        with Admin(east.bootstrap) as admin:
            admin.topics.create("orders", partitions=2)
        with Producer(east.bootstrap) as producer:
            producer.send("orders", b"one")

        def real(text: str) -> str:
            return text.replace("east:9092", east.bootstrap).replace("west:9092", west.bootstrap)

        def run(words: list[str]) -> None:
            process = subprocess.run(
                [sys.executable, "-m", *words, "--once"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert process.returncode == 0, process.stdout + process.stderr

        commands = [
            line[2:]
            for block in blocks("console")
            for line in block.splitlines()
            if line[:2] == "$ "
        ]
        for command in commands:
            run(shlex.split(real(command)))
        assert commands and count(west.bootstrap, "east.orders") == 1

        (program,) = blocks("python")
        (tmp_path / "mirrored.py").write_text(
            real(program).replace("east=", "e=").replace("west=", "w=")
        )
        run(["millstream", "pipeline", "run", "mirrored.py"])
        assert count(west.bootstrap, "e.orders") == 1

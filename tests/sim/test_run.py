"""Whole runs: one broker, its clients and its faults.

The same seed gives the same run in any process and after any other run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from millstream.broker.app import Broker
from millstream.cluster.replicas.partition import Partition
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import BatchMeta, ProducerEntry, ProducerState
from millstream.replication.leader import LeaderReplicas
from millstream.sim import run
from millstream.sim.checks.history_checks import Violation
from millstream.wire.records.batch import BatchHeader

FINGERPRINT = re.compile(r"fingerprint ([0-9a-f]{8})")


def in_a_process(*arguments: str) -> str:
    """Return the output of the command.

    Strings hash as the environment says, unless the command controls that.
    """
    command = [sys.executable, "-m", "millstream.sim.run", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=110
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_same_seed_gives_the_same_run_in_any_process() -> None:
    alone = FINGERPRINT.findall(in_a_process("--seed", "2", "--quick"))
    after = FINGERPRINT.findall(
        in_a_process("--seeds", "2", "--first", "1", "--verbose", "--quick")
    )
    assert len(alone) == 1 and len(after) == 2
    assert alone[0] == after[1] != after[0]


def test_a_run_with_one_broker_is_clean_and_does_enough() -> None:
    result = run.run_seed(1, quick=True)
    assert result.violations == [] and result.errors == []
    assert result.activity["send ok"] > 50 and result.activity["txn ok"] > 5


def test_a_cluster_of_three_is_clean_and_does_enough() -> None:
    result = run.run_seed(2, scenario="replication", quick=True, only=["kill", "stop", "split"])
    assert result.violations == [] and result.errors == []
    assert result.activity["send ok"] > 50 and result.activity["elections"] > 0


def test_processes_are_replaced_after_some_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SEEDS_PER_PROCESS", 1)
    arguments = run._arguments(["--jobs", "2", "--quick", "--only", "pause"])
    assert [result.seed for result in run.results(range(1, 4), arguments)] == [1, 2, 3]


def test_error_of_a_run_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Broker) -> None:
        raise LookupError("nothing there")

    monkeypatch.setattr(Broker, "start", broken)
    result = run.run_seed(1, quick=True)
    assert result.bad and "nothing there" in result.errors[0]


def test_broker_that_acknowledges_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs found this defect: readers and coordinators received records that were not on
    disk yet.
    """

    def advance_without_the_disk(self: Partition) -> None:
        log = self.log
        if log is not None and log.advance_high_watermark(log.log_end_offset):
            self.waiters.wake()

    monkeypatch.setattr(Partition, "advance_alone", advance_without_the_disk)
    violations: Counter[str] = Counter()
    for seed in range(8, 38):  # the first of these seeds shows it, and no earlier seed
        violations.update(
            violation.kind
            for violation in run.run_seed(seed, quick=True, only=["crash"]).violations
        )
        if violations:
            break
    assert violations


def test_leader_that_does_not_wait_for_its_followers_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def advance_alone(self: LeaderReplicas, current: int, leader_end: int, **others: object) -> int:
        return max(current, leader_end)

    monkeypatch.setattr(LeaderReplicas, "high_watermark", advance_alone)
    violations: set[str] = set()
    for seed in range(1, 30):
        violations.update(v.kind for v in run.run_seed(seed, scenario="replication").violations)
        if "acknowledged-lost" in violations:
            break
    assert "acknowledged-lost" in violations


def test_reader_that_receives_open_transactions_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most of them are committed in the end, so only the times show it."""
    monkeypatch.setattr(
        PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark)
    )
    result = run.run_seed(5, scenario="cluster", quick=True)
    assert "dirty-read" in {violation.kind for violation in result.violations}


def test_reused_sequences_of_aborted_transactions_lose_nothing() -> None:
    result = run.run_seed(7, quick=True, only=["reset"])
    assert result.violations == [] and result.errors == []
    assert result.activity["sequences in doubt"] > 0 and result.activity["sequences rejected"] > 0


def test_acknowledging_reused_sequences_as_duplicates_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apache Kafka does this: it treats the batch as that of the aborted transaction, and the
    commit has no data.
    """

    def find_duplicate(
        self: ProducerState, header: BatchHeader, entry: ProducerEntry
    ) -> BatchMeta | None:
        return entry.find_duplicate(
            header.producer_epoch, header.base_sequence, header.last_sequence
        )

    monkeypatch.setattr(ProducerState, "_find_duplicate", find_duplicate)
    violations: set[str] = set()
    for seed in range(7, 37):
        violations.update(v.kind for v in run.run_seed(seed, quick=True, only=["reset"]).violations)
        if "lost-write" in violations:
            break
    assert "lost-write" in violations


def test_failing_seed_prints_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty: Counter[str] = Counter()
    bad = run.Result(
        7,
        "single",
        [Violation("lost-write", "k-0", "told")],
        ["an error"],
        [],
        empty,
        1.0,
        1,
        1.0,
        0,
    )
    thin = run.Result(8, "single", [], [], ["send ok"], empty, 1.0, 1, 1.0, 0)
    monkeypatch.setattr(run, "run_seed", lambda seed, **_: {7: bad, 8: thin}[seed])
    assert run.main(["--first", "7", "--seeds", "2"]) == 1
    output = capsys.readouterr().out
    assert "lost-write k-0: told" in output and "make sim SEED=7 TRACE=1" in output
    assert "seed 8 does not count: too little of send ok" in output
    assert "2 seeds, 1 bad, 1 with too little activity" in output

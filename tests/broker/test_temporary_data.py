"""Temporary data is in memory only if the system has enough of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from millstream.broker import temporary_data


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands in for the file system in memory."""
    monkeypatch.setattr(temporary_data, "MEMORY", str(tmp_path))
    monkeypatch.setattr(temporary_data, "ENOUGH_MEMORY_BYTES", 1)
    return tmp_path


def test_data_is_in_memory_and_removed(memory: Path) -> None:
    with temporary_data.temporary_data() as data:
        data.mkdir()
        (data / "segment").write_bytes(b"records")
        assert data.parent.parent == memory
    assert list(memory.iterdir()) == []


def test_data_is_on_disk_if_memory_is_short(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_data, "ENOUGH_MEMORY_BYTES", 1 << 62)
    assert temporary_data.base_directory() == Path(tempfile.gettempdir())


def test_data_is_on_disk_without_a_file_system_in_memory(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_data, "MEMORY", str(memory / "missing"))
    assert temporary_data.base_directory() == Path(tempfile.gettempdir())

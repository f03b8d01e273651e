"""The lock of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.pipelines.run.locks import Lock, LockHeld, is_locked


def test_lock_is_exclusive_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not is_locked(path)
    first, second = Lock(path), Lock(path)
    first.acquire()
    assert is_locked(path)
    with pytest.raises(LockHeld) as raised:
        second.acquire()
    assert raised.value.holder_name.startswith("process ")
    first.release()
    assert not is_locked(path)
    second.acquire()
    second.release()

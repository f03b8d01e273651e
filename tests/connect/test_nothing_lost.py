"""Rows that could be lost without a word: hidden directories, keys without a value, values of another type, another order than before."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
import pyarrow.parquet

from millstream.connect import delta
from millstream.pipelines import parquet
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.parquet_sink import staged_files


def test_directories_that_readers_skip_are_refused_and_staged_files_are_all_found(tmp_path: Path) -> None:
    for target in (parquet, delta):
        with pytest.raises(PipelineError, match=r"by '_day': readers of Parquet skip.*another name"):
            target(str(tmp_path / "lake"), by=["n", "_day"])
    for name in ("_day=1/part-0.parquet", "part-1.parquet", "_temporary/0/part-2.parquet"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({"n": [1, 2]}), path)
    found = [(str(path.relative_to(tmp_path)), rows) for path, rows in staged_files(tmp_path)]
    assert found == [("_day=1/part-0.parquet", 2), ("part-1.parquet", 2)]

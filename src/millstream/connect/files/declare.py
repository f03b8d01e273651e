"""``files("incoming", format="csv", schema=...)``: the files of a directory as a stream of rows.

Spark's file source keeps the names of the files that it has read in the checkpoint of each flow.
Every file is read once, also those that arrive while the flow runs. A file is read as it is when
Spark first sees it: write it elsewhere on the same file system (or under a name that begins with a
dot or an underscore) and move it in. A file that is changed later is not read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import PipelineError, nearest
from millstream.pipelines.formats.registry import Explain, struct_type, value_format
from millstream.pipelines.origins import Origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "json", "parquet")
FILES_PER_BATCH = 100
ENDINGS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
# Options of Spark's file source that are rejected; others go to the reader of the format.
REJECTED = {
    "cleanSource": "several flows may read the same files, each at its own time",
    "latestFirst": "files are read in the order of their times",
    "mode": "rows that do not parse go to the dead letters",
    "columnNameOfCorruptRecord": "rows that do not parse go to the dead letters",
}


@dataclass(frozen=True)
class FilesOrigin(Origin):
    """The files of a directory."""

    path: str
    format: str
    schema: Any
    files_per_batch: int = FILES_PER_BATCH
    options: Mapping[str, str] = field(default_factory=dict)

    def rows(self, spark: SparkSession) -> DataFrame:
        from millstream.connect.files.rows import READERS

        return READERS[self.format](spark, self)

    def explainer(self) -> Explain | None:
        if self.format == "json":
            return value_format("json", self.schema).explainer()
        if self.format != "csv":
            return None
        from millstream.connect.files.csv_columns import explain_line

        names = tuple(struct_type(self.schema, format="csv").names)
        separator, quote = self.options.get("sep", ","), self.options.get("quote", '"')
        return partial(explain_line, names=names, separator=separator, quote=quote)

    def __str__(self) -> str:
        return f"{self.format} files of {self.path}"


def files(
    path: str,
    *,
    format: str | None = None,
    schema: Any = None,
    files_per_batch: int = FILES_PER_BATCH,
    **options: Any,
) -> FilesOrigin:
    """Declare the files of a directory and its subdirectories as a stream.

    ``format`` is ``csv`` (with a header unless ``header=False``), ``json`` (one object per line) or
    ``parquet``. ``schema`` is as in CREATE TABLE, with NOT NULL if every row needs a value; Parquet
    files have their own. ``options`` are those of Spark's reader, such as ``sep`` or
    ``pathGlobFilter``.
    """
    path = str(path).removeprefix("file://")
    kind = format or _guess_format(path)
    if kind not in FORMATS:
        raise PipelineError(f"file format {kind!r} is unknown", hint=nearest(kind, FORMATS))
    if schema is None and kind != "parquet":
        raise PipelineError(
            f"{kind} files of {path} need a schema",
            hint="for example schema='id string NOT NULL, n int'",
        )
    for name in options:
        if reason := REJECTED.get(name):
            raise PipelineError(f"files() has no option {name}: {reason}")
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return FilesOrigin(str(Path(path).absolute()), kind, schema, int(files_per_batch), texts)


def _guess_format(path: str) -> str:
    """Return the format of the first file in a directory, by its ending."""
    for file in sorted(Path(path).rglob("*")) if Path(path).is_dir() else ():
        if file.suffix.lower() in ENDINGS and not file.name.startswith((".", "_")):
            return ENDINGS[file.suffix.lower()]
    raise PipelineError(
        f"the format of the files in {path} is unknown", hint=f"give format= {', '.join(FORMATS)}"
    )

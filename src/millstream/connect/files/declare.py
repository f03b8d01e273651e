"""``files("incoming", format="csv", schema=...)``: a directory into which files are moved, as a stream of their rows.

Spark's file source keeps the names of the files that it has read in the checkpoint of each flow, so every file is read once, also those that arrive
while the flow runs. A file is taken as it is when it is first seen: write it elsewhere on the same file system (or under a name that begins with a
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
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
# Of Spark's file source; what else is given goes to the reader of the format.
REFUSED = {
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
    """The files of a directory and of those below it: ``csv`` (with a header unless ``header=False``), ``json`` (one object a line) or ``parquet``.

    ``schema`` as in CREATE TABLE, NOT NULL where a row needs a value; Parquet files bring their own. ``options`` are those of Spark's
    reader, such as ``sep`` or ``pathGlobFilter``.
    """
    path = str(path).removeprefix("file://")
    found = format or _guessed(path)
    if found not in FORMATS:
        raise PipelineError(f"there is no file format {found!r}", hint=nearest(found, FORMATS))
    if schema is None and found != "parquet":
        raise PipelineError(
            f"{found} files of {path} need a schema", hint="for example schema='id string NOT NULL, n int'"
        )
    for name in options:
        if reason := REFUSED.get(name):
            raise PipelineError(f"files() does not take {name}: {reason}")
    texts = {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in options.items()}
    return FilesOrigin(str(Path(path).absolute()), found, schema, int(files_per_batch), texts)


def _guessed(path: str) -> str:
    """By the first file that is there."""
    for one in sorted(Path(path).rglob("*")) if Path(path).is_dir() else ():
        if one.suffix.lower() in ENDINGS and not one.name.startswith((".", "_")):
            return ENDINGS[one.suffix.lower()]
    raise PipelineError(
        f"the format of the files in {path} is not known", hint=f"give format= {', '.join(FORMATS)}"
    )

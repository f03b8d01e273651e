"""Loads a pipeline file. Errors name the line of the file, without a traceback."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from millstream.pipelines.declare import Pipeline
from millstream.pipelines.errors import PipelineError, SourceLine

# Spark's error for a udf that is created without a session, and the remedy.
NO_SESSION = (
    "SESSION_OR_CONTEXT_NOT_EXISTS",
    "the file is loaded before Spark starts: create the udf inside the flow that uses it",
)


def load_pipeline(path: str) -> Pipeline:
    """Run the file and return the Pipeline that it declares.

    The directory of the file is on the import path, as if Python ran the file.
    """
    file = Path(path)
    if not file.is_file():
        raise PipelineError(
            f"file {path} does not exist", hint="pass the Python file that declares the pipeline"
        )
    module = _run(file.resolve())
    pipelines = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(pipelines) != 1:
        problem = (
            "declares no Pipeline" if not pipelines else f"declares {len(pipelines)} pipelines"
        )
        raise PipelineError(
            f"{path} {problem}", hint="declare one `pipe = Pipeline(NAME)` per file"
        )
    return next(iter(pipelines.values()))


def _run(file: Path) -> ModuleType:
    name = "".join(letter if letter.isalnum() else "_" for letter in file.stem)
    # With an explicit loader, because the file need not end in .py.
    spec = importlib.util.spec_from_file_location(
        name, file, loader=SourceFileLoader(name, str(file))
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    before = sys.modules.get(name)
    # Dataclasses and type hints look up their module.
    sys.modules[name] = module
    _pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except PipelineError as error:
        if error.place is not None:
            raise
        raise PipelineError(
            error.message, hint=error.hint, place=place_in(error, str(file))
        ) from None
    except Exception as error:
        hint = NO_SESSION[1] if NO_SESSION[0] in str(error) else ""
        raise PipelineError(
            describe(error, str(file)), hint=hint, place=place_in(error, str(file))
        ) from error
    finally:
        if before is not None:
            sys.modules[name] = before
    return module


def _pickle_by_value(module: ModuleType) -> None:
    """Let Spark pickle the functions of the file by value, because executors cannot import it."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def place_in(error: BaseException, file: str) -> SourceLine | None:
    """Return the last line of the file in the traceback of an error."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return SourceLine(file, error.lineno)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return SourceLine(file, lines[-1]) if lines and lines[-1] is not None else None


def describe(error: BaseException, file: str) -> str:
    """Return an error in one line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

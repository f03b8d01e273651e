"""The inputs of each flow, the order in which flows can run, and errors in names.

A flow that names another flow reads the topic which that flow writes. Problems are returned as a
list, so that ``check`` can show all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.pipelines.declare import SESSION, Flow, Pipeline, Stream, Table, View
from millstream.pipelines.errors import PipelineError, SourceLine, nearest


class Problem(NamedTuple):
    """A problem in a declaration. Warnings do not keep a pipeline from running."""

    place: SourceLine | None
    text: str
    hint: str = ""
    warning: bool = False

    def error(self) -> PipelineError:
        return PipelineError(self.text, hint=self.hint, place=self.place)


class Graph(NamedTuple):
    """The flows, each after those that it reads, and the names of the flows that each one reads."""

    order: tuple[Flow, ...]
    upstream: dict[str, frozenset[str]]

    def waves(self) -> list[list[Flow]]:
        """Return the flows in groups. Each group reads only the output of earlier groups."""
        level: dict[str, int] = {}
        for flow in self.order:
            level[flow.name] = 1 + max(
                (level[name] for name in self.upstream[flow.name]), default=-1
            )
        groups: list[list[Flow]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
        for flow in self.order:
            groups[level[flow.name]].append(flow)
        return groups


def build_graph(pipeline: Pipeline) -> Graph:
    """Return the graph of a pipeline, or raise PipelineError for its first problem."""
    for problem in find_problems(pipeline):
        if not problem.warning:
            raise problem.error()
    upstream = {
        flow.name: frozenset(_flows_read(pipeline, flow)) for flow in pipeline.flows.values()
    }
    return Graph(tuple(_sorted(pipeline, upstream)), upstream)


def find_problems(pipeline: Pipeline) -> list[Problem]:
    """Return unknown names, cycles, topics with two writers, and missing schemas."""
    problems = [*_name_problems(pipeline)]
    if not problems:
        problems += _cycle_problems(pipeline)
    problems += _schema_problems(pipeline)
    problems += _writer_problems(pipeline)
    if not pipeline.flows:
        problems.append(
            Problem(
                pipeline.place, f"pipeline {pipeline.name} has no flows", "declare one with @flow"
            )
        )
    return problems


def with_upstream(graph: Graph, only: Sequence[str]) -> list[Flow]:
    """Return the named flows in order. Raise PipelineError for an unknown name."""
    known = {flow.name for flow in graph.order}
    for name in only:
        if name not in known:
            raise PipelineError(f"flow {name!r} does not exist", hint=nearest(name, known))
    return [flow for flow in graph.order if not only or flow.name in only]


def inputs_of(pipeline: Pipeline, flow: Flow | View) -> list[Stream | Table | View | Flow]:
    """Return the declarations that a flow or view names, in order, without the session."""
    return [
        _lookup(pipeline, name)
        for name in flow.inputs
        if name != SESSION and _known(pipeline, name)
    ]


def leaves(pipeline: Pipeline, flow: Flow | View) -> Iterator[Stream | Table | Flow]:
    """Yield the inputs of a flow, with the inputs of its views instead of the views."""
    for source in inputs_of(pipeline, flow):
        if isinstance(source, View):
            yield from leaves(pipeline, source)
        else:
            yield source


def definition(pipeline: Pipeline, flow: Flow) -> tuple[object, ...]:
    """Return a key that is equal for two flows that do the same, wherever they were declared."""
    read = tuple(
        source.name if isinstance(source, Flow) else source for source in leaves(pipeline, flow)
    )
    action = flow.function if flow.sql is None and flow.letters_of is None else flow.sql
    return flow.name, action, flow.targets, flow.mode, flow.trigger_ms, flow.letters_of, read


def _steps(pipeline: Pipeline) -> list[Flow | View]:
    return [*pipeline.views.values(), *pipeline.flows.values()]


def _known(pipeline: Pipeline, name: str) -> bool:
    return name in pipeline.names


def _lookup(pipeline: Pipeline, name: str) -> Stream | Table | View | Flow:
    parts: tuple[dict[str, Stream] | dict[str, Table] | dict[str, View] | dict[str, Flow], ...]
    parts = (pipeline.streams, pipeline.tables, pipeline.views, pipeline.flows)
    return next(part[name] for part in parts if name in part)


def _flows_read(pipeline: Pipeline, flow: Flow) -> Iterator[str]:
    for source in leaves(pipeline, flow):
        if isinstance(source, Flow):
            yield source.name
        elif writer := pipeline.writer_of(source.topic):
            yield writer[0].name


def _name_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for step in _steps(pipeline):
        label = f"{'view' if isinstance(step, View) else 'flow'} {step.name}"
        for name in step.inputs:
            if name != SESSION and not _known(pipeline, name):
                known = pipeline.names.keys() - {step.name}
                yield Problem(
                    step.place,
                    f"{label} reads {name!r}, which is not declared",
                    nearest(name, known),
                )
        for read in inputs_of(pipeline, step):
            if isinstance(read, Flow) and not read.topics:
                yield Problem(
                    step.place,
                    f"{label} reads flow {read.name}, which writes no topic",
                    "give that flow a topic too, or make it a view",
                )
        if not any(name != SESSION for name in step.inputs):
            yield Problem(step.place, f"{label} reads nothing", "add a stream as a parameter")


def _cycle_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for start in _steps(pipeline):
        path = _cycle_through(pipeline, start)
        # Report each cycle once.
        if path and path[0] == min(path):
            yield Problem(
                start.place,
                f"cycle: {' reads '.join([*path, path[0]])}",
                "break it with a separate stream",
            )
            return


def _cycle_through(pipeline: Pipeline, start: Flow | View) -> list[str]:
    """Return the names on the path from a flow or view back to itself, or an empty list."""
    stack: list[tuple[Flow | View, list[str]]] = [(start, [start.name])]
    seen: set[str] = set()
    while stack:
        step, path = stack.pop()
        for read in _reads(pipeline, step):
            if read.name == start.name:
                return path
            if read.name not in seen:
                seen.add(read.name)
                stack.append((read, [*path, read.name]))
    return []


def _reads(pipeline: Pipeline, step: Flow | View) -> Iterator[Flow | View]:
    for read in inputs_of(pipeline, step):
        if isinstance(read, Flow | View):
            yield read
        elif writer := pipeline.writer_of(read.topic):
            yield writer[0]


def _schema_problems(pipeline: Pipeline) -> Iterator[Problem]:
    read: list[Stream | Table] = [*pipeline.streams.values(), *pipeline.tables.values()]
    for source in read:
        kind = "stream" if isinstance(source, Stream) else "table"
        has_origin = isinstance(source, Stream) and source.origin is not None
        if (
            source.value == "json"
            and source.schema is None
            and not has_origin
            and pipeline.writer_of(source.topic) is None
        ):
            yield Problem(
                source.place,
                f"{kind} {source.name} has no schema",
                "give schema='id string, amount double'",
            )


def _writer_problems(pipeline: Pipeline) -> Iterator[Problem]:
    first: dict[str, Flow] = {}
    for flow in pipeline.flows.values():
        for target in flow.targets:
            where = str(target)
            if where in first:
                other = "itself" if first[where] is flow else f"flow {first[where].name}"
                # Each flow has its own transactions and files, so this is valid, but rarely
                # intended.
                yield Problem(
                    flow.place,
                    f"flow {flow.name} writes to {where}, as does {other}",
                    warning=other != "itself",
                )
            first[where] = flow


def _sorted(pipeline: Pipeline, upstream: dict[str, frozenset[str]]) -> Iterator[Flow]:
    done: set[str] = set()
    waiting = list(pipeline.flows.values())
    while waiting:
        ready = next(flow for flow in waiting if upstream[flow.name] <= done)
        waiting.remove(ready)
        done.add(ready.name)
        yield ready

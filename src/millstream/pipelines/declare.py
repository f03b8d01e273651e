"""``Pipeline``: the declarations of a pipeline file.

Flows read streams and tables and write targets; views are steps that flows share. This module needs
neither Spark nor a broker. ``graph`` connects the declarations, ``runner`` runs them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from millstream.client.connection import DEFAULT_BOOTSTRAP
from millstream.pipelines.durations import Watermark, parse_duration_ms, parse_watermark
from millstream.pipelines.errors import PipelineError, SourceLine, caller
from millstream.pipelines.formats.registry import TOMBSTONES, Tombstones
from millstream.pipelines.origins import Origin
from millstream.pipelines.sql_names import tables_named
from millstream.pipelines.stores import Store
from millstream.pipelines.targets import NOTHING, Target, TopicTarget

Mode = Literal["append", "update", "complete"]
OnFailure = Literal["retry", "stop"]
Function = TypeVar("Function", bound=Callable[..., Any])

MODES = ("append", "update", "complete")
SESSION = "spark"
"""A parameter with this name gets the Spark session."""
DEAD_LETTER_PREFIX = "dlq."
"""Prefix of the names of flows that write dead letters."""
DEFAULT_CHECKPOINTS = "millstream-checkpoints"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


@dataclass(frozen=True)
class Stream:
    """A topic, or another origin, that is read record by record.

    Reading starts at the beginning unless ``starting`` says otherwise.
    """

    name: str
    topic: str
    value: str
    schema: Any
    watermark: Watermark | None
    starting: str
    meta: bool
    source_options: Mapping[str, str]
    options: Mapping[str, Any]
    dead_letters: str | None
    place: SourceLine
    origin: Origin | None = None
    """The origin of the rows, if it is not a topic. ``topic`` is empty then."""
    tombstones: Tombstones | None = None

    @property
    def what(self) -> str:
        """The topic or origin, as it is stored beside checkpoints."""
        return self.topic if self.origin is None else str(self.origin)


@dataclass(frozen=True)
class Table:
    """A compacted topic: the latest row of each key. A record without a value deletes its key."""

    name: str
    topic: str
    value: str
    schema: Any
    meta: bool
    source_options: Mapping[str, str]
    options: Mapping[str, Any]
    dead_letters: str | None
    place: SourceLine


@dataclass(frozen=True)
class View:
    """A step that flows share. It becomes part of each flow that names it, and writes nothing."""

    name: str
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    place: SourceLine
    sql: str | None = None


@dataclass(frozen=True)
class Flow:
    """A function from its inputs to rows, and the targets of the rows."""

    name: str
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    targets: tuple[Target, ...]
    mode: Mode
    place: SourceLine
    sql: str | None = None
    trigger_ms: int | None = None
    on_failure: OnFailure | None = None
    letters_of: Stream | Table | None = None
    """The stream or table whose dead letters this flow writes; None for flows of the user."""

    @property
    def topics(self) -> tuple[TopicTarget, ...]:
        return tuple(target for target in self.targets if isinstance(target, TopicTarget))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(target for target in self.targets if isinstance(target, Store))


@dataclass
class Pipeline:
    """Topics and flows under one name.

    The name is part of every consumer group, sink and checkpoint, so it should not change.
    """

    name: str
    bootstrap: str = DEFAULT_BOOTSTRAP
    checkpoint: str | None = None
    """The parent directory of the pipeline's checkpoints. [default: ./millstream-checkpoints]"""
    on_failure: OnFailure = "retry"
    """``retry`` a flow ``retries`` times, then stop the others; or ``stop`` them at once."""
    retries: int = 5
    trigger: str | None = None
    """The time between the starts of two batches. [default: as soon as records arrive]"""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    dead_letters: bool = True
    """Write records that do not parse to TOPIC.dlq."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the connection, ``kafka.*``."""

    def __post_init__(self) -> None:
        self.place = caller()
        self.streams: dict[str, Stream] = {}
        self.tables: dict[str, Table] = {}
        self.views: dict[str, View] = {}
        self.flows: dict[str, Flow] = {}
        _check_name(self.name, "pipeline", self.place)
        _check_choice(self.on_failure, ("retry", "stop"), "on_failure", self.place)
        _check_choice(self.delivery, ("exactly-once", "at-least-once"), "delivery", self.place)
        self.trigger_ms = parse_duration_ms(self.trigger) if self.trigger else None

    def stream(
        self,
        name: str,
        origin: Origin | None = None,
        *,
        topic: str | None = None,
        value: str = "json",
        schema: Any = None,
        watermark: str | None = None,
        starting: str = "earliest",
        meta: bool = False,
        tombstones: Tombstones | None = None,
        dead_letters: str | bool | None = None,
        source: Mapping[str, Any] = NOTHING,
        **options: Any,
    ) -> Stream:
        """Declare a topic as a stream of rows.

        Flows name it as a parameter; dashes and dots become underscores. With an ``origin`` the
        rows come from there instead.

        ``meta`` adds the columns ``_key``, ``_topic``, ``_partition``, ``_offset`` and
        ``_timestamp``. ``source`` has options of the source, like ``maxOffsetsPerTrigger``. Other
        options go to the format.

        A record with a key and without a value is a tombstone, which a stream leaves out. With
        ``tombstones="keep"`` it becomes a row in which only ``_deleted`` is set, and with
        ``"error"`` a dead letter. ``"drop"`` also leaves out records without a key and a value.
        """
        place = caller()
        if origin is not None:
            _check_origin(
                origin,
                place,
                topic=topic,
                schema=schema,
                tombstones=tombstones,
                **source,
                **options,
            )
        if tombstones is not None:
            _check_choice(tombstones, TOMBSTONES, "tombstones", place)
        stream = Stream(
            name=identifier(name),
            topic="" if origin is not None else topic or name,
            value=value,
            schema=schema,
            watermark=parse_watermark(watermark) if watermark else None,
            starting=starting,
            meta=meta,
            source_options={key: str(setting) for key, setting in source.items()},
            options=options,
            dead_letters=self._dead_letters(dead_letters, topic or name),
            place=place,
            origin=origin,
            tombstones=tombstones,
        )
        self._add(stream.name, place)
        self.streams[stream.name] = stream
        return stream

    def table(
        self,
        name: str,
        *,
        topic: str | None = None,
        value: str = "json",
        schema: Any = None,
        meta: bool = False,
        dead_letters: str | bool | None = None,
        source: Mapping[str, Any] = NOTHING,
        **options: Any,
    ) -> Table:
        """Declare a compacted topic as a table.

        Every batch of a flow that joins it sees the latest row of each key.
        """
        place = caller()
        table = Table(
            name=identifier(name),
            topic=topic or name,
            value=value,
            schema=schema,
            meta=meta,
            source_options={key: str(setting) for key, setting in source.items()},
            options=options,
            dead_letters=self._dead_letters(dead_letters, topic or name),
            place=place,
        )
        self._add(table.name, place)
        self.tables[table.name] = table
        return table

    def flow(
        self,
        to: Target | Sequence[Target],
        *,
        mode: Mode = "append",
        name: str | None = None,
        trigger: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a function as a flow.

        Its parameters name streams, tables, views and other flows; ``spark`` is the session.
        """
        targets = (to,) if isinstance(to, TopicTarget | Store) else tuple(to)

        def declare(function: Function) -> Function:
            place = _place_of(function)
            flow = Flow(
                name=name or function.__name__,
                inputs=_parameters(function, place),
                function=function,
                targets=targets,
                mode=mode,
                place=place,
                trigger_ms=parse_duration_ms(trigger) if trigger else None,
                on_failure=on_failure,
            )
            self._add_flow(flow)
            return function

        return declare

    def sql(
        self,
        name: str,
        query: str,
        *,
        to: Target | Sequence[Target],
        mode: Mode = "append",
        trigger: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Flow:
        """Declare a query as a flow. It may name streams, tables, views and other flows."""
        targets = (to,) if isinstance(to, TopicTarget | Store) else tuple(to)
        flow = Flow(
            name=name,
            inputs=tables_named(query),
            function=_run_sql(query),
            targets=targets,
            mode=mode,
            place=caller(),
            sql=query,
            trigger_ms=parse_duration_ms(trigger) if trigger else None,
            on_failure=on_failure,
        )
        self._add_flow(flow)
        return flow

    def view(self, function: Function) -> Function:
        """Declare a function as a step that flows share, for example to parse or filter once."""
        place = _place_of(function)
        self._add(function.__name__, place)
        self.views[function.__name__] = View(
            function.__name__, _parameters(function, place), function, place
        )
        return function

    def sql_view(self, name: str, query: str) -> View:
        """Declare a query as a step that flows share."""
        place = caller()
        self._add(name, place)
        self.views[name] = View(name, tables_named(query), _run_sql(query), place, query)
        return self.views[name]

    @property
    def names(self) -> dict[str, SourceLine]:
        """All names that can be used as inputs, and where they were declared."""
        parts: tuple[Mapping[str, Any], ...] = (self.streams, self.tables, self.views, self.flows)
        return {name: declaration.place for part in parts for name, declaration in part.items()}

    def writer_of(self, topic: str) -> tuple[Flow, TopicTarget] | None:
        """Return the flow that writes a topic, or None."""
        for flow in self.flows.values():
            for target in flow.topics:
                if target.topic == topic:
                    return flow, target
        return None

    def _dead_letters(self, declared: str | bool | None, topic: str) -> str | None:
        if isinstance(declared, str):
            return declared
        enabled = self.dead_letters if declared is None else declared
        return f"{topic}.dlq" if enabled else None

    def _add(self, name: str, place: SourceLine) -> None:
        _check_name(name, "input", place)
        if name == SESSION:
            raise PipelineError(
                f"the name {SESSION!r} is reserved for the Spark session",
                hint="choose another name",
                place=place,
            )
        if name in self.names:
            raise PipelineError(
                f"{name!r} is already declared",
                hint=f"it is declared at {self.names[name]}",
                place=place,
            )

    def _add_flow(self, flow: Flow) -> None:
        self._add(flow.name, flow.place)
        _check_choice(flow.mode, MODES, "mode", flow.place)
        if flow.on_failure is not None:
            _check_choice(flow.on_failure, ("retry", "stop"), "on_failure", flow.place)
        if not flow.targets:
            raise PipelineError(
                f"flow {flow.name} has no target", hint="give to=topic(...)", place=flow.place
            )
        for store in flow.stores:
            if flow.mode not in store.modes:
                raise PipelineError(
                    f"flow {flow.name} writes {store} in {flow.mode} mode, which would repeat rows",
                    hint=f"use mode={' or '.join(map(repr, store.modes))}; "
                    "to append final results, give the window a watermark",
                    place=flow.place,
                )
        self.flows[flow.name] = flow


def _check_origin(origin: Origin, place: SourceLine, **options: Any) -> None:
    """Reject options of topics for a stream with another origin."""
    if not isinstance(origin, Origin):
        raise PipelineError(
            f"a stream cannot be read from {origin!r}",
            hint="give files(...) or table(...) of millstream.connect, or topic='NAME'",
            place=place,
        )
    for name, value in options.items():
        if value is not None:
            raise PipelineError(
                f"{name}= is an option of topics, but this stream reads {origin}",
                hint="pass options of the rows to the origin",
                place=place,
            )


def identifier(name: str) -> str:
    """Return the name of a topic as a valid parameter name."""
    return re.sub(r"[.-]", "_", name)


def _run_sql(query: str) -> Callable[..., Any]:
    def run(spark: Any) -> Any:
        return spark.sql(query)

    return run


def _parameters(function: Callable[..., Any], place: SourceLine) -> tuple[str, ...]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PipelineError(
                f"{function.__name__}(*{parameter.name}) does not name its inputs",
                hint="name each stream and table as a parameter",
                place=place,
            )
        if parameter.default is parameter.empty:
            names.append(parameter.name)
    return tuple(names)


def _place_of(function: Callable[..., Any]) -> SourceLine:
    code = inspect.unwrap(function).__code__
    return SourceLine(code.co_filename, code.co_firstlineno)


def _check_name(name: str, kind: str, place: SourceLine) -> None:
    if name in (".", "..") or (kind != "pipeline" and name.startswith((".", DEAD_LETTER_PREFIX))):
        raise PipelineError(
            f"{name!r} cannot be the name of a{'n' if kind[0] in 'aeiou' else ''} {kind}",
            hint=f"names that begin with a dot or {DEAD_LETTER_PREFIX!r} are reserved",
            place=place,
        )
    if not _NAME.match(name):
        raise PipelineError(
            f"{name!r} cannot be the name of a{'n' if kind[0] in 'aeiou' else ''} {kind}",
            hint="use letters, digits, dots, dashes and underscores",
            place=place,
        )


def _check_choice(value: str, choices: Sequence[str], setting: str, place: SourceLine) -> None:
    if value not in choices:
        raise PipelineError(
            f"{setting}={value!r} is unknown", hint=f"choose from {', '.join(choices)}", place=place
        )

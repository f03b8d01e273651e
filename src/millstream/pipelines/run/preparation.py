"""Prepares flows before their queries start: topics, start offsets, plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.client.admin.client import Admin
from millstream.pipelines.dead_letters.ownership import DeadLetterPlan, dead_letter_flows
from millstream.pipelines.dead_letters.queries import create_topic
from millstream.pipelines.dead_letters.refusals import rejected_rows_origin, rejected_rows_topic
from millstream.pipelines.declare import Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import build_graph, with_upstream
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.locks import lock_pipeline
from millstream.pipelines.run.options import Emit, RunOptions
from millstream.pipelines.run.plan import RunPlan
from millstream.pipelines.run.start_offsets import StartOffsets
from millstream.pipelines.run.writers import WriterFactory
from millstream.pipelines.topics import compacted_topics, create_missing, missing_inputs

if TYPE_CHECKING:
    from millstream.pipelines.frames.builder import Frames


def preflight(pipeline: Pipeline, options: RunOptions) -> None:
    """Raise for errors that can be found before Spark starts.

    These are wrong names, a second run of the pipeline, and missing brokers and topics.
    """
    flows = with_upstream(build_graph(pipeline), options.only)
    lock_pipeline(Layout.of(pipeline, options.checkpoint), pipeline.name).release()
    with Admin(pipeline.bootstrap) as admin:
        check_inputs(admin, pipeline, flows)


def check_inputs(admin: Admin, pipeline: Pipeline, flows: Sequence[Flow]) -> None:
    """Raise PipelineError if a topic that flows read does not exist."""
    for problem in missing_inputs(pipeline, flows, admin.topics.names()):
        raise problem.error()


class Preparation:
    """Creates topics, resolves start offsets, and builds the plans of flows."""

    def __init__(
        self, layout: Layout, starts: StartOffsets, writers: WriterFactory, emit: Emit
    ) -> None:
        self._layout = layout
        self._starts = starts
        self._writers = writers
        self._emit = emit

    def prepare_all(self, frames: Frames, plan: RunPlan, on_change: Callable[[], None]) -> None:
        """Prepare all flows of a run, and settle who writes their dead letters.

        ``on_change`` is called if this changes the queries of the plan.
        """
        with Admin(plan.pipeline.bootstrap) as admin:
            # The queries for dead letters are not certain yet.
            self._build(
                admin, frames, plan, plan.flows, plan.dead_letters._replace(queries=[]), plan.flows
            )
            letters = self._settle_dead_letters(frames, plan, on_change)
            self._resolve_starts(frames, plan, letters, plan.dead_letters)
            self._create_dead_letter_topics(admin, plan, plan.flows, letters)
        self._finish(frames, plan, plan.flows, letters)

    def prepare_one(self, frames: Frames, plan: RunPlan, flow: Flow) -> None:
        """Prepare one of several independent flows, or one query for dead letters."""
        is_query = flow.letters_of is not None
        flows, letters = ([], [flow]) if is_query else ([flow], [])
        with Admin(plan.pipeline.bootstrap) as admin:
            self._build(admin, frames, plan, flows, plan.dead_letters, [flow])
            self._create_dead_letter_topics(admin, plan, flows, letters)
        self._finish(frames, plan, flows, letters)

    def _build(
        self,
        admin: Admin,
        frames: Frames,
        plan: RunPlan,
        flows: Sequence[Flow],
        letter_plan: DeadLetterPlan,
        starting: Sequence[Flow],
    ) -> None:
        """Build ``flows``, after their topics exist and ``starting`` queries have start offsets."""
        check_inputs(admin, plan.pipeline, flows)
        upstream = [flow for flow in plan.graph.order if flow.topics]
        for name in create_missing(admin, upstream):
            self._emit({"event": "created", "topic": name})
        self._resolve_starts(frames, plan, starting, letter_plan)
        frames.load_sources(flows)
        for flow in flows:
            self._layout.check_inputs(plan.pipeline, flow)
            frames.build(flow)

    def _resolve_starts(
        self, frames: Frames, plan: RunPlan, flows: Sequence[Flow], letter_plan: DeadLetterPlan
    ) -> None:
        """Decide where these queries start to read, and those that write their dead letters."""
        self._starts.resolve(frames, letter_plan, flows, plan.flows)
        for flow in flows:
            self._starts.apply(frames, flow)

    def _settle_dead_letters(
        self, frames: Frames, plan: RunPlan, on_change: Callable[[], None]
    ) -> list[Flow]:
        """Decide who writes dead letters by the plans of the flows. Return the queries for them."""
        before = plan.dead_letters
        settled = plan.settle_dead_letters(frames.reads)
        queries = dead_letter_flows(plan.pipeline, plan.flows)
        self._starts.hand_over(
            settled.left, queries, lambda flow: self._writers.fence(plan.pipeline, flow)
        )
        if plan.dead_letters is not before:
            frames.change_owners(settled.owned)
            on_change()
        return plan.dead_letters.queries

    def _create_dead_letter_topics(
        self, admin: Admin, plan: RunPlan, flows: Sequence[Flow], letters: Sequence[Flow]
    ) -> None:
        for stream in _with_dead_letters(plan, flows, letters):
            assert stream.dead_letters is not None
            self._create(admin, stream.dead_letters, stream.topic)
        keyed = [target.topic for flow in flows for target in flow.topics if target.key]
        self._writers.compacted |= compacted_topics(admin, keyed)
        for flow in flows:
            topic = rejected_rows_topic(plan.pipeline, flow, self._writers.compacted)
            if topic:
                self._create(admin, topic, rejected_rows_origin(plan.pipeline, flow))

    def _create(self, admin: Admin, topic: str, origin: str) -> None:
        if create_topic(admin, topic, origin):
            self._emit({"event": "created", "topic": topic})

    def _finish(
        self, frames: Frames, plan: RunPlan, flows: Sequence[Flow], letters: Sequence[Flow]
    ) -> None:
        owned = plan.dead_letters.owned
        self._layout.store_dead_letter_owners(
            {name: letters.flow for name, letters in owned.items()}
        )
        for flow in letters:
            self._layout.check_inputs(plan.pipeline, flow)
        for flow in (*flows, *letters):
            frames.build(flow)


def _with_dead_letters(
    plan: RunPlan, flows: Sequence[Flow], letters: Sequence[Flow]
) -> list[Stream | Table]:
    """Return the streams and tables whose dead letters these flows and queries write."""
    names = {flow.name for flow in flows}
    owned = [
        letters.stream for letters in plan.dead_letters.owned.values() if letters.flow in names
    ]
    return [*owned, *(query.letters_of for query in letters if query.letters_of is not None)]

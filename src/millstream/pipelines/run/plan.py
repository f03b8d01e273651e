"""The queries that a run needs, and the order in which they may start. Decisions only."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.pipelines.dead_letters.ownership import (
    DeadLetterPlan,
    Reads,
    dead_letter_flows,
    plan_dead_letters,
    writer_name,
)
from millstream.pipelines.declare import Flow, Pipeline
from millstream.pipelines.graph import Graph, build_graph, definition, with_upstream
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.run.supervisor import FlowState


class RunPlan:
    """The flows of a pipeline that are to run, and the queries that write only dead letters.

    A plan does not change, except that ``settle_dead_letters`` replaces its first guess. The names
    in ``running`` are queries of an earlier plan: those with the same definition continue.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        layout: Layout,
        before: RunPlan | None = None,
        running: Mapping[str, Flow] | None = None,
    ) -> None:
        self._options = options
        self._layout = layout
        self.pipeline = pipeline
        self.graph = self._graph()
        self.flows = self._chosen_flows()
        self.dead_letters = self._first_dead_letters()
        self.queries = self._all_queries()
        """The flows that should run, by name, with the queries for dead letters."""
        if before is not None and running is not None:
            self._keep(before.pipeline, running)

    def settle_dead_letters(self, reads: Reads) -> DeadLetterPlan:
        """Choose the writers of dead letters by the streams that flows really read.

        Return the new plan of dead letters.
        """
        plan = plan_dead_letters(
            self.pipeline,
            self.flows,
            self._layout.dead_letter_owners(),
            self._layout.has_started,
            reads,
        )
        if plan.writers != self.dead_letters.writers:
            self.dead_letters = plan
            self.queries = self._all_queries()
        return plan

    def flow_state(self, flow: Flow) -> FlowState:
        """Return the initial state of a flow for the supervisor."""
        return FlowState(
            flow.name,
            needs=self._needs(flow) if self._options.once else frozenset(),
            follows=self._follows(flow),
            on_failure=flow.on_failure or self.pipeline.on_failure,
            retries=self.pipeline.retries,
        )

    def _graph(self) -> Graph:
        if self._options.independent and not self.pipeline.flows:
            return Graph((), {})
        return build_graph(self.pipeline)

    def _chosen_flows(self) -> list[Flow]:
        """Return the flows to run. Independent flows may have been removed."""
        only = self._options.only
        if not self._options.independent:
            return with_upstream(self.graph, only)
        return [flow for flow in self.graph.order if not only or flow.name in only]

    def _first_dead_letters(self) -> DeadLetterPlan:
        # Independent flows come and go, so none of them can own dead letters.
        if self._options.independent:
            return DeadLetterPlan({}, dead_letter_flows(self.pipeline, self.flows), {})
        owners = self._layout.dead_letter_owners()
        return plan_dead_letters(self.pipeline, self.flows, owners, self._layout.has_started)

    def _all_queries(self) -> dict[str, Flow]:
        return {flow.name: flow for flow in (*self.flows, *self.dead_letters.queries)}

    def _keep(self, pipeline: Pipeline, running: Mapping[str, Flow]) -> None:
        for name, flow in running.items():
            new = self.queries.get(name)
            if new is not None and definition(pipeline, flow) == definition(self.pipeline, new):
                self.queries[name] = flow

    def _needs(self, flow: Flow) -> frozenset[str]:
        """Return the flows that write the topics that a flow reads."""
        if flow.letters_of is None:
            return self.graph.upstream.get(flow.name, frozenset())
        writer = writer_name(self.pipeline, flow)
        return frozenset() if writer is None else frozenset({writer})

    def _follows(self, flow: Flow) -> frozenset[str]:
        """Return the flows that a new flow leaves the CPU to until they have had a batch.

        A flow that reads the output of others has nothing to read before. Dead letters can wait for
        results.
        """
        if self._options.once or self._options.independent or self._layout.has_started(flow.name):
            return frozenset()
        if flow.letters_of is None:
            return self.graph.upstream.get(flow.name, frozenset())
        return frozenset(other.name for other in self.flows)

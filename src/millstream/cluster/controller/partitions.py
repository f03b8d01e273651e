"""All changes of the controller to partitions: their leaders, ISRs and replicas, by cause.

Brokers join, fail, shut down and lose directories (``brokers``). Operators elect leaders and
reassign replicas (``elections``, ``reassignments``). Leaders propose another ISR (``isr``). Pure
functions of ``control/`` decide each change for one partition. The classes here apply them to all
partitions concerned, in as few writes as possible.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.cluster.controller.broker_changes import BrokerChanges
from millstream.cluster.controller.isr_changes import IsrChanges
from millstream.cluster.controller.leader_election import LeaderElections
from millstream.cluster.controller.reassignments import PartitionReassignments
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.controller.unavailable_replicas import UnavailableReplicas
from millstream.control.image import ClusterImage


class PartitionControl:
    """The parts that change partitions, while this broker is the controller."""

    def __init__(
        self, state: ControllerState, *, unclean: Callable[[ClusterImage, str], bool]
    ) -> None:
        """``unclean`` returns whether a topic allows unclean elections."""
        self.unavailable = UnavailableReplicas()
        self.elections = LeaderElections(state, self.unavailable, unclean=unclean)
        self.brokers = BrokerChanges(state, self.unavailable, self.elections)
        self.reassignments = PartitionReassignments(state)
        self.isr = IsrChanges(state, self.unavailable, self.elections, self.reassignments)

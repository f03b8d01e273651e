"""One direction of a mirror: the two clusters, the topics, their names and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.client.connection import Connection, parse_bootstrap
from millstream.client.errors import ClientError
from millstream.client.protocol import Protocol
from millstream.connect.mirror.policy import Selection, check_cluster_name, name_of_address
from millstream.spark.sink.transaction import retry

TIMEOUT_S = 10.0
FIRST_CONTACT_S = 30.0


@dataclass(frozen=True)
class MirrorCluster:
    """A cluster and its name; ``options`` are those of Spark's source and sink."""

    name: str
    bootstrap: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MirrorCluster:
        """Parse ``east=host:9092,other:9092``; without a name, the first address becomes one."""
        name, equals, bootstrap = text.partition("=")
        if not equals:
            name, bootstrap = name_of_address(text), text
        parse_bootstrap(bootstrap)
        return cls(check_cluster_name(name), bootstrap)

    def connection(self) -> Connection:
        return Connection(self.bootstrap, TIMEOUT_S)

    def __str__(self) -> str:
        return f"{self.name} ({self.bootstrap})"


@dataclass(frozen=True)
class Direction:
    """From one cluster to another."""

    source: MirrorCluster
    target: MirrorCluster
    selection: Selection
    groups: tuple[str, ...] = ()
    """The groups whose offsets are translated: names or regular expressions."""
    both: bool = False
    """The other direction is mirrored as well."""
    leads: bool = True
    """Copy the settings of topics. If the topics are shared, only one direction may do so."""
    forward: bool = False
    """With naming ``identity``: also copy copies, unless they came from the target."""
    skip_losses: bool = False
    starting: str = "earliest"
    interval_s: float = 5.0
    most_records: int = 500_000
    compression: str = "lz4"

    @property
    def name(self) -> str:
        return f"{self.source.name}-to-{self.target.name}"


@dataclass(frozen=True)
class Ids:
    """The cluster ids, which do not depend on addresses."""

    source: str
    target: str


def find_ids(direction: Direction) -> Ids:
    """Request both ids, and reject a mirror of a cluster onto itself."""
    ids = Ids(_id_of(direction.source), _id_of(direction.target))
    if ids.source == ids.target:
        raise ClientError(
            f"{direction.source} and {direction.target} are the same cluster ({ids.source})",
            hint="a mirror needs two",
        )
    return ids


def _id_of(cluster: MirrorCluster) -> str:
    protocol = Protocol(cluster.connection())
    try:
        cluster_id = retry(lambda: protocol.metadata([]), FIRST_CONTACT_S).cluster_id
    finally:
        protocol.close()
    if not cluster_id or "/" in cluster_id:
        raise ClientError(
            f"{cluster} does not report a cluster id", hint="check that it is a Kafka broker"
        )
    return str(cluster_id)

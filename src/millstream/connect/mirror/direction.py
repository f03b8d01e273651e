"""One direction of a mirror: two clusters, what is copied, under which names, and how."""

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
    """A cluster and what it is called; ``options`` are those of Spark's source and sink, each for whom it concerns."""

    name: str
    bootstrap: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MirrorCluster:
        """``east=host:9092,other:9092``, or only addresses: the name is then made of the first."""
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
    """The settings of the source's topics are those of the target's. Only one direction may lead where topics are shared."""
    forward: bool = False
    """With names kept: also copy what is a copy itself, unless it came from the target."""
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
    """What the two clusters call themselves, wherever they are reached."""

    source: str
    target: str


def find_ids(direction: Direction) -> Ids:
    """Ask both; a mirror of a cluster onto itself is refused."""
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
        found = retry(lambda: protocol.metadata([]), FIRST_CONTACT_S).cluster_id
    finally:
        protocol.close()
    if not found or "/" in found:
        raise ClientError(f"{cluster} does not say its cluster id", hint="see that it is a Kafka broker")
    return str(found)

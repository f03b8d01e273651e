"""``millstream elect-leaders``: elect the preferred replicas, or any live replica, as leaders."""

from __future__ import annotations

from typing import Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import Bootstrap, Format, OutputFormat, Timeout
from millstream.cli.support.output import note, print_json, print_table
from millstream.cli.support.partitions import TopicOptions, partitions_of
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S

app = declare.Application()


@app.command()
def elect_leaders(
    topic: TopicOptions = None,
    unclean: Annotated[
        bool,
        declare.Option(
            "--unclean",
            help="Elect any live replica of partitions without a leader. Records that only others have are lost.",
        ),
    ] = False,
    yes: Annotated[
        bool, declare.Option("--yes", "-y", help="Do not ask for confirmation.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Elect the preferred (first) replica of each partition as leader, if it is in sync.

    Applies to all partitions unless topics are given.
    """
    from millstream.client.admin.client import Admin

    if unclean and not yes:
        declare.confirm(
            "Acknowledged records may be lost. Elect leaders anyway?", abort=True, err=True
        )
    with Admin(bootstrap, timeout_s=timeout) as admin:
        partitions = partitions_of(admin, topic) if topic else None
        results = admin.reassignments.elect_leaders(partitions, unclean=unclean)
        leaders = {
            (described.name, partition.id): partition.leader
            for described in admin.topics.describe(sorted({tp.topic for tp in results}))
            for partition in described.partitions
        }
    rows = [
        (tp.topic, tp.partition, leaders.get(tp), error) for tp, error in sorted(results.items())
    ]
    if format is Format.json:
        print_json(
            [
                {
                    "topic": name,
                    "partition": index,
                    "leader": leader,
                    "error": str(error) if error else None,
                }
                for name, index, leader, error in rows
            ]
        )
    elif rows:
        print_table(("TOPIC", "PARTITION", "LEADER", "ERROR"), rows)
    else:
        note("every partition already has its preferred leader")
    if any(error for *_rest, error in rows):
        raise declare.Exit(1)

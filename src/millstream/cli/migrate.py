"""``millstream migrate``: make the broker of a data directory the first member of a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import note, print_json
from millstream.client.errors import ClientError
from millstream.core.words import counted

app = declare.Application()

_NEXT = """\
next: millstream serve --set log.dirs={dirs} --set zookeeper.connect={connect}   (keep the other settings and the node.id)
      start more brokers with the same zookeeper.connect and different node.ids
      millstream reassign execute --replication-factor 3   then spreads the partitions; internal topics get three replicas automatically"""


@app.command()
def migrate(
    to: Annotated[
        str,
        declare.Option("--to", metavar="HOST:PORT[/CHROOT]", help="The ZooKeeper of the cluster."),
    ],
    data: Annotated[
        list[str] | None,
        declare.Option(
            "--data", metavar="DIR", help="A data directory of the broker (repeatable)."
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        declare.Option(metavar="DIR", help="The broker's metadata.log.dir, if set."),
    ] = None,
    undo: Annotated[bool, declare.Option("--undo", help="Undo an unfinished migration.")] = False,
    timeout: Annotated[
        float, declare.Option(metavar="SECONDS", min=1, help="How long to wait for ZooKeeper.")
    ] = 20.0,
    format: OutputFormat = Format.table,
) -> None:
    """Migrate the metadata of a stopped broker to ZooKeeper.

    Topics, ids, settings and groups are kept, and logs stay in place. After an interruption, run
    the command again to continue.
    """
    from millstream.broker.migration.to_zookeeper import (
        MigrationError,
        migrate_to_zookeeper,
        undo_at_zookeeper,
    )

    dirs = data or ["./data"]
    missing = next((directory for directory in dirs if not Path(directory).is_dir()), None)
    if missing is not None:
        raise ClientError(
            f"directory {missing} does not exist",
            hint="give the broker's data directory with --data",
        )
    try:
        if undo:
            asyncio.run(undo_at_zookeeper(to, dirs, metadata_dir=metadata, timeout_s=timeout))
            _report_undone(to, format)
            return
        migrated = asyncio.run(
            migrate_to_zookeeper(to, dirs, metadata_dir=metadata, timeout_s=timeout)
        )
    except (MigrationError, OSError) as error:
        raise ClientError(str(error)) from None
    if format is Format.json:
        print_json(
            {
                "cluster_id": migrated.cluster_id,
                "topics": migrated.topics,
                "nodes": migrated.nodes,
                "zookeeper": to,
            }
        )
        return
    topics = counted(migrated.topics, "topic")
    print(
        f"cluster {migrated.cluster_id}: migrated {topics} and {migrated.nodes} nodes to ZooKeeper at {to}"
    )
    note(_NEXT.format(dirs=",".join(dirs), connect=to))


def _report_undone(to: str, format: Format) -> None:
    if format is Format.json:
        print_json({"zookeeper": to, "undone": True})
    else:
        print(f"undid the migration to {to}: the broker can start alone again")

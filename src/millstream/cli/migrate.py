"""``millstream migrate``: make the broker of a data directory the first member of a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import note, print_json
from millstream.client.errors import ClientError
from millstream.core.words import counted

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_NEXT = """\
next: millstream serve --set log.dirs={dirs} --set zookeeper.connect={connect}   (with its other settings, and the same node.id)
      further brokers join with the same zookeeper.connect and a node.id of their own
      millstream reassign execute --replication-factor 3   then spreads the partitions; internal topics get three replicas by themselves"""


@app.command()
def migrate(
    to: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT[/CHROOT]", help="The ZooKeeper of the cluster.")
    ],
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="DIR", help="A data directory (repeat it).")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The broker's metadata.log.dir, where it has one."),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back a move that was not finished.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1)] = 20.0,
    format: OutputFormat = Format.table,
) -> None:
    """Move the metadata of a stopped broker to ZooKeeper: topics, ids, settings and groups are kept, logs stay in place. What was interrupted goes on when it is repeated."""
    from millstream.broker.migration.to_zookeeper import (
        MigrationError,
        migrate_to_zookeeper,
        undo_at_zookeeper,
    )

    dirs = data or ["./data"]
    missing = next((one for one in dirs if not Path(one).is_dir()), None)
    if missing is not None:
        raise ClientError(
            f"there is no directory {missing}", hint="--data names where the broker keeps its data"
        )
    try:
        if undo:
            asyncio.run(undo_at_zookeeper(to, dirs, metadata_dir=metadata, timeout_s=timeout))
            _tell_undone(to, format)
            return
        done = asyncio.run(migrate_to_zookeeper(to, dirs, metadata_dir=metadata, timeout_s=timeout))
    except (MigrationError, OSError) as error:
        raise ClientError(str(error)) from None
    if format is Format.json:
        print_json(
            {"cluster_id": done.cluster_id, "topics": done.topics, "nodes": done.nodes, "zookeeper": to}
        )
        return
    topics = counted(done.topics, "topic")
    print(f"cluster {done.cluster_id}: {topics}, {done.nodes} nodes are in ZooKeeper at {to}")
    note(_NEXT.format(dirs=",".join(dirs), connect=to))


def _tell_undone(to: str, format: Format) -> None:
    if format is Format.json:
        print_json({"zookeeper": to, "undone": True})
    else:
        print(f"the move to {to} is taken back: the broker starts alone again")

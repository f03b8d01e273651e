"""``millstream zookeeper``: a real ZooKeeper server in the foreground."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

from millstream.cli.support import declare
from millstream.client.errors import ClientError
from millstream.local.foreground import (
    is_owned,
    refuse_owned,
    refuse_used_ports,
)
from millstream.local.process import ProcessFailed
from millstream.local.signals import stopped_by_signals
from millstream.local.zookeeper import (
    DEFAULT_PORT,
    HOST,
    SERVER,
    LocalZooKeeper,
    refuse_member_alone,
)

app = declare.Application()

_POLL_S = 0.1


@app.command()
def zookeeper(
    port: Annotated[
        int, declare.Option(min=0, max=65535, help="Port for clients; 0 picks a free one.")
    ] = DEFAULT_PORT,
    data: Annotated[
        Path, declare.Option(metavar="DIR", help="Directory of its data and log.")
    ] = Path("zookeeper"),
) -> None:
    """Run a ZooKeeper server in the foreground; Ctrl-C or SIGTERM stops it.

    The server comes with PySpark or with Debian's package, and needs Java 17 or later. Brokers use
    it with --set zookeeper.connect=HOST:PORT.
    """
    try:
        with stopped_by_signals():
            _run(data, port)
    except KeyboardInterrupt:
        raise declare.Exit(0) from None


def _run(data: Path, port: int) -> None:
    refuse_member_alone(data, others_run=is_owned(data.resolve().parent))
    refuse_owned(data, SERVER)
    if port:
        hint = f"choose another --port, or use the server that runs at {HOST}:{port}"
        refuse_used_ports(HOST, {"ZooKeeper": port}, hint)
    server = LocalZooKeeper(data, port)
    server.tied = True
    started_s = time.monotonic()
    try:
        server.start()
        took_s = time.monotonic() - started_s
        data_dir = os.path.relpath(server.directory)
        print(
            f"zookeeper ready: {server.address}, data {data_dir}, log {os.path.relpath(server.log_file)}, {took_s:.2f} s",
            flush=True,
        )
        while server.running:
            time.sleep(_POLL_S)
    except ProcessFailed as error:
        raise ClientError(str(error)) from None
    except KeyboardInterrupt:
        server.stop()
        raise
    print(server.tail())
    raise ClientError(
        f"the ZooKeeper server exited with code {server.exit_code}", hint=f"see {server.log_file}"
    )

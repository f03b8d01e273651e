"""``millstream spark up`` and ``millstream spark prepare``.

``up`` runs a Spark standalone master and workers on this machine, in the foreground. ``prepare``
makes later starts of local Spark faster.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

from millstream.cli.spark.cluster import SparkMaster, SparkServer, SparkWorker
from millstream.cli.support import declare
from millstream.cli.support.extras import need_spark
from millstream.cli.support.options import Format, OutputFormat, noun
from millstream.cli.support.output import human_bytes, note_on_terminal, print_json
from millstream.client.errors import ClientError
from millstream.local.foreground import own_directory, refuse_used_ports
from millstream.local.signals import stopped_by_signals
from millstream.local.zookeeper import free_ports

app = noun("Spark on this machine: a cluster to try --master with, and faster startup.")

HOST = "127.0.0.1"
DEFAULT_PORT = 7077
DEFAULT_WEB_PORT = 8080
READY_TIMEOUT_S = 120.0
_POLL_S = 0.2


@app.callback()
def spark() -> None:
    """Spark on this machine: a cluster to try --master with, and faster startup."""


@app.command()
def up(
    workers: Annotated[int, declare.Option(min=1, help="Number of workers.")] = 2,
    cores: Annotated[
        int | None,
        declare.Option(
            min=1, help="Cores of each worker. [default: an equal share of this machine]"
        ),
    ] = None,
    memory: Annotated[str, declare.Option(help="Memory of each worker for executors.")] = "2g",
    host: Annotated[str, declare.Option(help="Address to listen on.")] = HOST,
    port: Annotated[
        int, declare.Option(min=0, max=65535, help="Port of the master; 0 picks a free one.")
    ] = DEFAULT_PORT,
    web_port: Annotated[
        int,
        declare.Option(
            min=0, max=65535, help="Port of the master's web pages; 0 picks a free one."
        ),
    ] = DEFAULT_WEB_PORT,
    data: Annotated[
        Path, declare.Option(metavar="DIR", help="Directory of logs and work files.")
    ] = Path("spark-cluster"),
    format: OutputFormat = Format.table,
) -> None:
    """Run a Spark master and workers in the foreground; Ctrl-C or SIGTERM stops all of them."""
    need_spark("a master and workers")
    with own_directory(data.resolve(), "a Spark cluster"), stopped_by_signals():
        port = port or free_ports(1)[0]
        refuse_used_ports(
            host, {"master": port}, "choose another port with --port (0 picks a free one)"
        )
        master = SparkMaster(data.resolve(), host, port, web_port)
        share = cores or max(1, (os.cpu_count() or 1) // workers)
        processes = [
            SparkWorker(data.resolve(), number, host, master.url, cores=share, memory=memory)
            for number in range(workers)
        ]
        _run(master, processes, as_json=format is Format.json)


@app.command()
def prepare(
    again: Annotated[
        bool, declare.Option("--again", help="Repeat it if it was done before.")
    ] = False,
    format: OutputFormat = Format.table,
) -> None:
    """Make later starts of Spark faster: write a class archive that JVMs load at startup."""
    need_spark("class archives")
    from millstream.cli.spark.prepare import prepare_archive

    note_on_terminal("running a small pipeline, which takes about half a minute ...")
    prepared = prepare_archive(again=again)
    size = prepared.archive.stat().st_size
    if format is Format.json:
        facts = {"archive": str(prepared.archive), "bytes": size, "made": prepared.made}
        print_json({**facts, "seconds": round(prepared.seconds, 1)})
    elif prepared.made:
        print(
            f"prepared Spark in {prepared.seconds:.0f} s: {prepared.archive} ({human_bytes(size)})"
        )
    else:
        print(f"Spark is already prepared: {prepared.archive} ({human_bytes(size)})")


def _run(master: SparkMaster, workers: list[SparkWorker], *, as_json: bool) -> None:
    started: list[SparkServer] = []
    try:
        for server in (master, *workers):
            server.tied = True
            server.spawn()
            started.append(server)
            if server is master:
                server.wait_ready(READY_TIMEOUT_S)
                _report(server, {"url": master.url, "web": master.web}, as_json)
        for worker in workers:
            worker.wait_ready(READY_TIMEOUT_S)
            _report(
                worker, {"cores": worker.cores, "memory": worker.memory, "web": worker.web}, as_json
            )
        if not as_json:
            print(f"\n try: millstream pipeline run FILE --master {master.url}", flush=True)
        _watch(master, started, as_json)
    except KeyboardInterrupt:
        pass
    finally:
        for server in reversed(started):
            server.stop()


def _watch(master: SparkMaster, servers: list[SparkServer], as_json: bool) -> None:
    """Watch the servers until Ctrl-C. Report a worker that exits; fail if the master exits."""
    running = list(servers)
    while True:
        for server in [server for server in running if not server.running]:
            running.remove(server)
            facts: dict[str, object] = {
                "state": "ended",
                "exit_code": server.exit_code,
                "log": str(server.log_file),
            }
            _report(server, facts, as_json)
        if master not in running:
            raise ClientError("the master has exited", hint=f"see {master.log_file}")
        time.sleep(_POLL_S)


def _report(server: SparkServer, facts: dict[str, object], as_json: bool) -> None:
    """Print the state of a process."""
    facts = {name: fact for name, fact in facts.items() if fact is not None}
    if as_json:
        state = {"state": "up", "pid": server.pid} if server.running else {}
        print_json({"process": server.title, **state, **facts})
    else:
        print(
            f" {server.title:<10} " + "   ".join(_fact(name, fact) for name, fact in facts.items())
        )
    sys.stdout.flush()


def _fact(name: str, fact: object) -> str:
    if name in ("cores", "exit_code"):
        return f"{name.replace('_', ' ')} {fact}"
    return str(fact)

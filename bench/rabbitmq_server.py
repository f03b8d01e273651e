"""A RabbitMQ server for streams: `python -m bench.rabbitmq_server --home DIR --port PORT`.

The server needs Erlang's port mapper, and would start it as a daemon that outlives the server. Here
the mapper is a separate process with a separate port. Both end with this program, at SIGTERM,
SIGINT or the end of stdin.
"""

import argparse
import os
import socket
import subprocess
import time
from pathlib import Path

from bench import keeper

# The program on the PATH would change the user.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
STOP_S = 30.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def configuration(port: int, amqp_port: int) -> str:
    """Configure the stream listener, and keep memory and disk limits from blocking a producer."""
    return (
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n"
        "disk_free_limit.absolute = 50MB\n"
        "log.console = false\n"
    )


def environment(home: Path, mapper_port: int) -> dict[str, str]:
    return os.environ | {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{mapper_port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
    }


def prepare(home: Path, port: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "rabbitmq.conf").write_text(configuration(port, free_port()))
    (home / "rabbitmq-env.conf").write_text("")
    (home / "enabled_plugins").write_text("[rabbitmq_stream].\n")


def _wait_for_mapper(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.005)
    raise SystemExit("epmd did not start")


def _start(command: list[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process without its stdout, which is not read."""
    devnull = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=devnull, stdout=devnull, env=settings)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    keeper.exit_on_signals()
    mapper_port = free_port()
    prepare(options.home, options.port)
    mapper = _start(["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], dict(os.environ))
    server = None
    try:
        _wait_for_mapper(mapper_port)
        settings = environment(options.home, mapper_port)
        server = _start([str(PROGRAM)], settings)
        keeper.wait_for_parent()
    finally:
        keeper.ignore_signals()
        for process in (server, mapper):
            if process is not None:
                _stop(process)


if __name__ == "__main__":
    main()

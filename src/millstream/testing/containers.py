"""``MillstreamContainer``: a broker for testcontainers-python, in place of its Kafka container.

    from millstream.testing.containers import KafkaContainer   # the same class, under both names

    with KafkaContainer() as kafka:
        run_my_service(bootstrap=kafka.get_bootstrap_server())

The broker has to advertise the port that the container engine maps, which is known once the
container runs. So the container first waits for a script with that address, as testcontainers does
for Kafka. The script then runs the entry point of the image.

A Python test does not need a container: ``millstream.testing.broker()`` starts in milliseconds.
This module is for suites that start all their servers as containers.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import time
from typing import Any, Self

from millstream.broker.ephemeral import QUICK

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.exceptions import ContainerStartException
except ImportError as error:
    raise ImportError(
        "millstream.testing.containers needs testcontainers (pip install testcontainers); "
        "without containers, use millstream.testing.broker()"
    ) from error

IMAGE = "millstream"
PORT = 9093
READY = r"millstream ready:"
START_TIMEOUT_S = 30
# For other containers of the same network.
_INSIDE_LISTENER, _INSIDE_PORT = "BROKER", 9092
_SCRIPT, _SCRIPT_IS_COMPLETE = "/millstream-start.sh", "/millstream-start.complete"
_WAIT_FOR_SCRIPT = f"while [ ! -e {_SCRIPT_IS_COMPLETE} ]; do sleep 0.05; done; . {_SCRIPT}"
_POLL_S = 0.05
_LOG_TAIL_CHARS = 2000


class MillstreamContainer(DockerContainer):  # type: ignore[misc]
    """A broker in a container, with the interface of ``testcontainers.kafka.KafkaContainer``."""

    def __init__(
        self,
        image: str = IMAGE,
        port: int = PORT,
        wait_strategy_check_string: str = READY,
        listener_name: str = "PLAINTEXT",
        security_protocol: str = "PLAINTEXT",
        **kwargs: Any,
    ) -> None:
        if security_protocol != "PLAINTEXT":
            raise ValueError(
                f"security_protocol {security_protocol!r} is not supported; use PLAINTEXT"
            )
        try:
            super().__init__(image, **kwargs)
        except Exception as error:
            error.add_note("Without a container engine, use millstream.testing.broker().")
            raise
        self.port = port
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.wait_for = re.compile(wait_strategy_check_string)
        self.cluster_id: str | None = None
        self.with_exposed_ports(port)
        for name, value in self._settings().items():
            self.with_setting(name, value)

    def _settings(self) -> dict[str, object]:
        outside, inside = self.listener_name, _INSIDE_LISTENER
        return QUICK | {
            "listeners": f"{outside}://0.0.0.0:{self.port},{inside}://0.0.0.0:{_INSIDE_PORT}",
            "listener.security.protocol.map": f"{inside}:PLAINTEXT,{outside}:PLAINTEXT",
            "inter.broker.listener.name": inside,
        }

    def with_setting(self, name: str, value: object) -> Self:
        """Give the broker a setting under Kafka's name, such as ``num.partitions``."""
        self.with_env(variable(name), str(value))
        return self

    def with_kraft(self) -> Self:
        """Do nothing: a single broker needs neither ZooKeeper nor KRaft."""
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        self.cluster_id = cluster_id
        self.with_env("CLUSTER_ID", cluster_id)
        return self

    def get_bootstrap_server(self) -> str:
        """Return the address for clients outside of the container."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def start(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Start the container and return when the broker serves clients."""
        entry_point = {"entrypoint": ["sh", "-c", _WAIT_FOR_SCRIPT, "sh"]}
        self.with_kwargs(**self._kwargs | entry_point)
        super().start()
        self.get_wrapped_container().put_archive("/", _archive(self._script()))
        self._wait_until_ready(timeout)
        return self

    def _script(self) -> str:
        """Return the script that sets the advertised address and runs the image's entry point."""
        aliases = self._network_aliases
        inside_host = aliases[0] if aliases else "$(hostname -i | cut -d' ' -f1)"
        outside = f"{self.listener_name}://{self.get_bootstrap_server()}"
        inside = f"{_INSIDE_LISTENER}://{inside_host}:{_INSIDE_PORT}"
        image = self.get_wrapped_container().image.attrs["Config"]
        lines = [
            f'export {variable("advertised.listeners")}="{outside},{inside}"',
            # The arguments are the command of the container, if it has one.
            f"[ $# -gt 0 ] || set -- {shlex.join(image.get('Cmd') or [])}",
            f'exec {shlex.join(image.get("Entrypoint") or [])} "$@"',
        ]
        return "\n".join([*lines, ""])

    def _wait_until_ready(self, timeout: float) -> None:
        container = self.get_wrapped_container()
        deadline_s = time.monotonic() + timeout
        while True:
            container.reload()
            log = container.logs().decode(errors="replace")
            if self.wait_for.search(log):
                return
            tail = log[-_LOG_TAIL_CHARS:]
            if container.status in ("exited", "dead"):
                raise ContainerStartException(f"the broker exited before it was ready\n{tail}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the broker was not ready within {timeout:g} s\n{tail}")
            time.sleep(_POLL_S)


KafkaContainer = MillstreamContainer


def variable(setting: str) -> str:
    """Return the environment variable of a setting, as the image ``apache/kafka`` names it."""
    name = setting.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"KAFKA_{name.upper()}"


def _archive(script: str) -> bytes:
    """Return a tar file with the script, and after it the file that says the script is complete."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in ((_SCRIPT, script.encode()), (_SCRIPT_IS_COMPLETE, b"")):
            entry = tarfile.TarInfo(path.removeprefix("/"))
            entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()

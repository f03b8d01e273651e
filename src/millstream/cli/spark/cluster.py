"""Spark's standalone master and workers as child processes, from the installed PySpark."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from millstream.local.process import LocalProcess, ProcessFailed

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
_WEB = re.compile(r"Bound \w+ to [^\n]*? (https?://\S+)|and started at (https?://\S+)")
_REGISTERED = "Successfully registered with master"
_ELECTED = "New state: ALIVE"
# Memory of the master or worker process; executors have separate memory.
DAEMON_MEMORY = "512m"


class SparkServerFailed(ProcessFailed):
    """A master or worker did not start, or has exited."""


class SparkServer(LocalProcess):
    """A Spark process, which cannot import this package, like a remote one: the driver ships it."""

    failure = SparkServerFailed

    def __init__(self, directory: Path, name: str, host: str) -> None:
        super().__init__(directory, f"{name.replace(' ', '-')}.log")
        self.title = name
        self.host = host

    def environment(self) -> dict[str, str]:
        from millstream.spark.session import cache_dir, java_for_spark
        from millstream.spark.shipping import python_directory

        variables = {
            name: value
            for name, value in os.environ.items()
            if name
            not in ("PYTHONPATH", "PYSPARK_PYTHON", "VIRTUAL_ENV", "SPARK_HOME", "SPARK_CONF_DIR")
        }
        java = java_for_spark()
        python = python_directory(
            Path(getattr(sys, "_base_executable", sys.executable)), cache_dir()
        )
        variables["PATH"] = os.pathsep.join([str(python), os.environ.get("PATH", os.defpath)])
        if java.home is not None:
            variables["JAVA_HOME"] = str(java.home)
        return variables | {"SPARK_LOCAL_IP": self.host, "SPARK_DAEMON_MEMORY": DAEMON_MEMORY}

    def class_command(self, name: str, *words: str) -> list[str]:
        import pyspark

        home = Path(pyspark.__file__).parent
        return [str(home / "bin" / "spark-class"), name, "--host", self.host, *words]

    @property
    def web(self) -> str | None:
        """The address of its web page, from its log."""
        matches = _WEB.findall(self.output())
        return next((address for groups in matches for address in groups if address), None)


class SparkMaster(SparkServer):
    """The master, which workers and drivers connect to."""

    def __init__(self, directory: Path, host: str, port: int, web_port: int) -> None:
        super().__init__(directory, "master", host)
        self.port = port
        self.web_port = web_port

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def command(self) -> list[str]:
        return self.class_command(
            MASTER, "--port", str(self.port), "--webui-port", str(self.web_port)
        )

    def is_ready(self) -> bool:
        if not self.running or _ELECTED not in self.output():
            return False
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


class SparkWorker(SparkServer):
    """A worker, which starts executors."""

    def __init__(
        self, directory: Path, number: int, host: str, master: str, *, cores: int, memory: str
    ) -> None:
        super().__init__(directory, f"worker {number}", host)
        self.master = master
        self.cores = cores
        self.memory = memory

    def command(self) -> list[str]:
        work = self.directory / f"{self.title.replace(' ', '-')}-work"
        return self.class_command(
            WORKER,
            self.master,
            *("--webui-port", "0", "--cores", str(self.cores)),
            *("--memory", self.memory, "--work-dir", str(work)),
        )

    def is_ready(self) -> bool:
        return self.running and _REGISTERED in self.output()

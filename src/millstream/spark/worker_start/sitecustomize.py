"""Connect a source's Python process to Spark before it imports PySpark.

Spark gives the process of a streaming source ten seconds to connect, and no setting changes that.
The process imports PySpark first, which takes half a second of a core, and much longer on a busy
machine. Python imports this module at startup, since its directory is the first one of
``PYTHONPATH`` (``environment_map``). Other processes are not affected.
"""

from __future__ import annotations

import os
import sys

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


def connect_early(path: str) -> None:
    """Open the connection now, and hand it over when PySpark connects to the same path."""
    import socket

    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    early.connect(path)
    connect = socket.socket.connect

    def hand_over(self: socket.socket, address: object) -> None:
        if address != path:
            connect(self, address)  # type: ignore[arg-type]
            return
        socket.socket.connect = connect  # type: ignore[method-assign]
        os.dup2(early.fileno(), self.fileno(), inheritable=False)
        early.close()

    socket.socket.connect = hand_over  # type: ignore[method-assign, assignment]


def import_shadowed() -> None:
    """Import the ``sitecustomize`` that this one stands in front of, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        if this is not None:
            sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":
    if sys.orig_argv[1:] == ["-m", RUNNER] and "PYTHON_WORKER_FACTORY_SOCK_PATH" in os.environ:
        try:
            connect_early(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
        except OSError:
            # PySpark reports the error better when it tries.
            pass
    import_shadowed()

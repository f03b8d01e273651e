"""A real broker for tests: ``with millstream.testing.broker() as kafka:``, or fixtures.

The names below are loaded on first use, because pytest imports the plugin at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.asynchronous import AsyncKafka as AsyncKafka
    from millstream.testing.asynchronous import async_broker as async_broker
    from millstream.testing.faults import Fault as Fault
    from millstream.testing.faults import Faults as Faults
    from millstream.testing.kafka import Kafka as Kafka
    from millstream.testing.start import broker as broker
    from millstream.testing.thread_cluster import Cluster as Cluster
    from millstream.testing.thread_cluster import cluster as cluster
    from millstream.testing.unittest_case import BrokerTestCase as BrokerTestCase

# No module may have one of these names: once imported, the module would hide it.
_HOMES = {
    "AsyncKafka": "asynchronous",
    "BrokerTestCase": "unittest_case",
    "Cluster": "thread_cluster",
    "Fault": "faults",
    "Faults": "faults",
    "Kafka": "kafka",
    "async_broker": "asynchronous",
    "broker": "start",
    "cluster": "thread_cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)

"""The clients of the suite, each skipped with the reason where it cannot be had."""

from __future__ import annotations

import pytest

from compat.client_aiokafka import AioKafka
from compat.client_confluent import Confluent
from compat.client_kafka_python import KafkaPython
from compat.client_kcat import KCAT, Kcat
from compat.clients import Client

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka(), Kcat())


def _param(client: Client) -> object:
    if isinstance(client, Kcat) and KCAT is None:
        return pytest.param(
            client,
            marks=pytest.mark.skip(reason="kcat is not installed (Debian: apt install kcat)"),
        )
    return pytest.param(client, id=client.name)


every_client = pytest.mark.parametrize("client", [_param(client) for client in CLIENTS], ids=repr)

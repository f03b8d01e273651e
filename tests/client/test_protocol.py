"""Direct protocol requests to brokers that are missing, or are not brokers."""

from __future__ import annotations

import socket
import threading

import pytest

from millstream.client import (
    Admin,
    BrokerUnreachable,
    ClientError,
)


def test_listener_other_than_plaintext_is_rejected_without_a_connection():
    with (
        Admin("127.0.0.1:1", options={"security.protocol": "SASL_SSL"}) as admin,
        pytest.raises(ClientError, match="needs a PLAINTEXT listener, not SASL_SSL"),
    ):
        admin.transactions.list()


def test_unreachable_broker_is_reported():
    with (
        Admin("127.0.0.1:1") as admin,
        pytest.raises(BrokerUnreachable, match="connection refused"),
    ):
        admin.groups.list()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00\x00\x04\x00\x00\x00\x09"]
)
def test_server_that_is_not_a_broker_is_reported(answer: bytes):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the look whether anybody is there, then the request
                peer, _ = server.accept()
                with peer:
                    if peer.recv(1000):
                        peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            Admin(f"127.0.0.1:{server.getsockname()[1]}") as admin,
            pytest.raises(BrokerUnreachable, match="does not answer as a Kafka broker"),
        ):
            admin.groups.list()
        thread.join()

"""A row of the tables of bad input to the coordinators: a request, and the one error code that
Apache Kafka 4.3 answers.

Each row was asked of Apache Kafka 4.3.1 as well (``MILLSTREAM_TEST_BOOTSTRAP``). Where Millstream
differs on purpose, the row has both codes and the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compat.raw_client import Closed, ask
from compat.raw_requests import build, values
from millstream.core.errors import ErrorCode
from millstream.wire.apis import APIS
from millstream.wire.schema import Struct

AGAINST_KAFKA = "MILLSTREAM_TEST_BOOTSTRAP" in os.environ
CODES = ("error_code", "partition_error_code")
CLOSED = "the connection is closed"
_REQUESTS = {api.name: api for api in APIS}


@dataclass(frozen=True)
class Case:
    """``body(world)`` gives the fields of the request."""

    name: str
    api: str
    version: int
    body: Callable[[Any], dict[str, Any]]
    expect: ErrorCode | str
    kafka: ErrorCode | str | None = None
    why: str = ""

    @property
    def id(self) -> str:
        return f"{self.api} v{self.version}: {self.name}"

    def check(self, world: Any) -> None:
        expected = self.kafka if AGAINST_KAFKA and self.kafka is not None else self.expect
        try:
            answer = ask(
                world.bootstrap, self.api, self.version, request(self.api, **self.body(world))
            )
        except Closed:
            assert expected == CLOSED
            return
        assert failures(answer) == ([] if expected is ErrorCode.NONE else [expected]), answer


def request(api: str, **fields: Any) -> Struct:
    return build(_REQUESTS[api].request_class(), fields)


def failures(answer: Any) -> list[ErrorCode]:
    """The error codes of an answer that are not NONE, each once."""
    codes = {code for name in CODES for code in values(answer, name)} - {0}
    return sorted(map(ErrorCode.of, codes))

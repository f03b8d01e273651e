"""An answer that refuses can be made for every API in every version, and says the error where
clients look for it.
"""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.testing.refusal import refusal
from millstream.wire.apis import APIS, Api
from millstream.wire.schema import Struct

CODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def one_of_each(kind: type[Struct], version: int) -> Any:
    """A request that asks for one thing in every list that it has."""
    made = kind()
    for field in kind.fields:
        if field.kind == "array" and version in field.versions:
            item: Any = field.item
            plain = {"string": "x", "int32": 3, "int64": 3, "int8": 3, "uuid": bytes(range(16))}
            row = one_of_each(item, version) if isinstance(item, type) else plain.get(item, 0)
            setattr(made, field.name, [row])
    return made


def codes(found: Any) -> list[int]:
    told = []
    for field in type(found).fields:
        value = getattr(found, field.name)
        if field.name in ("error_code", "partition_error_code"):
            told.append(value)
        for row in value if isinstance(value, list) else ():
            told += codes(row) if isinstance(row, Struct) else []
    return told


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_api_can_refuse(api: Api) -> None:
    for version in range(api.min_version, api.newest + 1):
        answer = refusal(api, version, one_of_each(api.request_class(), version), CODE)
        data = bytearray()
        answer.encode(version, data)
        read, _end = api.response_class().decode(memoryview(data), version, 0)
        can_tell = codes(answer)
        assert not can_tell or CODE in codes(read), (api.name, version)


def test_rows_carry_the_names_that_were_asked_for() -> None:
    produce = next(api for api in APIS if api.name == "Produce")
    request = one_of_each(produce.request_class(), 9)
    request.topic_data[0].name, request.topic_data[0].partition_data[0].index = "orders", 7
    (topic,) = refusal(produce, 9, request, CODE).responses  # type: ignore[attr-defined]
    (row,) = topic.partition_responses
    assert (topic.name, row.index, row.error_code) == ("orders", 7, CODE)

"""Jobs for the tests of worker processes, apart from pytest so that a child imports little."""

from __future__ import annotations

import os
import time
from typing import Any

from millstream.core.errors import ApiError, ErrorCode


def add(a: int, b: int) -> int:
    return a + b


def reverse(data: memoryview) -> bytes:
    return bytes(data)[::-1]


def describe(*args: Any) -> str:
    return ",".join(type(arg).__name__ for arg in args)


def refuse() -> None:
    raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a lie in the length")


def refuse_bytes(data: memoryview) -> None:
    raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{len(data)} bytes that lie")


def raise_unpicklable() -> None:
    class Local(Exception):
        pass

    raise Local("only here")


def return_unpicklable() -> object:
    return lambda: None


def print_and_return() -> str:
    print("hello from a job")
    os.write(1, b"raw hello")
    return "clean"


def sleep_forever(touched: str) -> None:
    with open(touched, "w"):
        pass
    time.sleep(3600)


def append_line(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


def own_niceness() -> int:
    return os.nice(0)


def own_pid() -> int:
    return os.getpid()

"""What the pipeline tests share: producing JSON, waiting, running a pipeline in a thread of its
own, reading results.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.pipelines import Pipeline
from millstream.pipelines.runner import Run, RunOptions

PATIENCE_S = 300.0  # a machine that does a lot besides


def create(bootstrap: str, *names: str, partitions: int = 2, **configs: str) -> None:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    with Admin(bootstrap) as admin:
        for name in names:
            admin.topics.create(name, partitions=partitions, configs=settings)


def send(bootstrap: str, topic: str, rows: Iterable[Any], *, key: str | None = None) -> None:
    """Rows as JSON (bytes and None as they are); ``key`` names the field that is the key."""
    with Producer(bootstrap) as producer:
        for row in rows:
            if isinstance(row, Mapping):
                producer.send(
                    topic, json.dumps(row).encode(), key=str(row[key]).encode() if key else None
                )
            else:
                producer.send(topic, row)


def send_keyed(bootstrap: str, topic: str, rows: Mapping[str, Mapping[str, Any] | None]) -> None:
    with Producer(bootstrap) as producer:
        for key, row in rows.items():
            producer.send(
                topic, None if row is None else json.dumps(row).encode(), key=key.encode()
            )


def received(bootstrap: str, topic: str) -> list[Any]:
    """Every committed value of a topic, parsed."""
    return [json.loads(value) for _, value in records(bootstrap, topic)]


def records(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Key and value of every committed record."""
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return [(one.key, one.value or b"") for one in consumer]


def wait_until(condition: Callable[[], bool], what: str = "it") -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.05)


class Background:
    """A pipeline that runs in a thread until the block ends."""

    def __init__(self, pipeline: Pipeline, spark: Any, checkpoint: Path, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.run = Run(
            pipeline, spark, RunOptions(checkpoint=str(checkpoint), **options), self.events.append
        )
        self.ok: bool | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        try:
            self.ok = self.run.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the pipeline did not stop"
        if self.error is not None:
            raise self.error

    def wait(self) -> bool:
        """Until it ends by itself."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the pipeline did not end"
        if self.error is not None:
            raise self.error
        return bool(self.ok)

    def states(self, flow: str) -> list[str]:
        return [
            one["state"] for one in self.events if one["event"] == "flow" and one["flow"] == flow
        ]


def run_once(
    pipeline: Pipeline, spark: Any, checkpoint: Path, **options: Any
) -> list[dict[str, Any]]:
    """Run what is there; the events. Fails the test if a flow failed."""
    events: list[dict[str, Any]] = []
    ok = Run(
        pipeline, spark, RunOptions(once=True, checkpoint=str(checkpoint), **options), events.append
    ).run()
    assert ok, [one for one in events if one.get("state") == "failed"]
    return events

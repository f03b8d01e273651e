"""The requests of the classic protocol to a consumer group."""

from __future__ import annotations

from typing import Any

from millstream.core.decisions import Decision, Waiter
from millstream.groups.consumer_draft import Draft


def join(draft: Draft, request: Any, context: Any, waiter: Waiter) -> Decision:
    raise NotImplementedError


def sync(draft: Draft, request: Any, waiter: Waiter) -> Decision:
    raise NotImplementedError


def heartbeat(draft: Draft, request: Any, waiter: Waiter) -> Decision:
    raise NotImplementedError


def leave(draft: Draft, request: Any, context: Any, waiter: Waiter) -> Decision:
    raise NotImplementedError

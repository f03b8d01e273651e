"""ControllerFeed: a broker follows the controller. Between our own brokers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.wire.messages.controller_feed import ControllerFeedRequest, ControllerFeedResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ControllerFeedRequest
) -> ControllerFeedResponse:
    return await broker.member.feed.ask(request)

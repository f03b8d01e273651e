"""ControllerFeed: a broker follows the metadata changes of the controller.

Between Millstream brokers only. Kafka has no such API: in KRaft, brokers fetch the metadata log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.messages.controller_feed import ControllerFeedRequest

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices


_KEY = 30_000


async def handle(
    services: MemberServices, context: RequestContext, request: ControllerFeedRequest
) -> Encoded:
    body = await services.member.feed.ask_encoded(request)
    head = begin_response(_KEY, context.version, context.correlation_id)
    return Encoded([finish_response(head, len(body)), body])

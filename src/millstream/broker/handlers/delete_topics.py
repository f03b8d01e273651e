"""DeleteTopics: delete topics. Their directories are renamed at once and removed in the background.

* v5: the response has error messages.
* v6: topics by name or by id (KIP-516).

The controller executes it. With ``delete.topic.enable=false`` the response is
TOPIC_DELETION_DISABLED in all versions. Kafka sends INVALID_REQUEST below v3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.cluster.controller.changes import Outcome
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Steps, in_slices
from millstream.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millstream.wire.schema import NULL_UUID

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    # Created one by one, because a request may name a hundred thousand topics.
    named = (DeleteTopicState(name=name) for name in request.topic_names)
    topics = named if context.version < 6 else request.topics
    results = await in_slices(_check(services, topics))
    deletions = await in_slices(_deletions(results))
    if services.config.flag("delete.topic.enable"):
        outcomes = await services.local_controller.delete_topics(deletions)
    else:
        disabled = Outcome.of(ApiError(ErrorCode.TOPIC_DELETION_DISABLED))
        outcomes = dict.fromkeys(deletions, disabled)
    await in_slices(_apply(results, outcomes))
    return DeleteTopicsResponse(responses=results)


def _check(
    services: ControllerServices, topics: Iterable[DeleteTopicState]
) -> Steps[list[DeletableTopicResult]]:
    """Return a result for each topic. A topic that is named twice gets one error."""
    results: list[DeletableTopicResult] = []
    counts: Counter[str] = Counter()
    for topic in topics:
        result = _look_up(services, topic)
        results.append(result)
        if result.name is not None:
            counts[result.name] += 1
        yield
    kept: dict[object, DeletableTopicResult] = {}
    for result in results:
        yield
        if result.name is not None and counts[result.name] > 1:
            _fail(result, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            kept[result.name] = result
        else:
            kept[id(result)] = result
    return list(kept.values())


def _deletions(results: list[DeletableTopicResult]) -> Steps[dict[str, bytes]]:
    """Return the ids of the topics to delete, by name."""
    topic_ids: dict[str, bytes] = {}
    for result in results:
        yield
        if not result.error_code and result.name is not None:
            topic_ids[result.name] = result.topic_id
    return topic_ids


def _apply(results: list[DeletableTopicResult], outcomes: Mapping[str, Outcome]) -> Steps[None]:
    """Add the outcomes of the deletions to the results."""
    for result in results:
        yield
        outcome = outcomes.get(result.name or "")
        if outcome is not None and outcome.code and not result.error_code:
            _fail(result, outcome.code, outcome.message)


def _look_up(services: ControllerServices, topic: DeleteTopicState) -> DeletableTopicResult:
    # The controller's image, which may be ahead of its broker's.
    image = services.member.state.image
    result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_message=None)
    if topic.name is not None and topic.topic_id != NULL_UUID:
        return _fail(
            result, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    if topic.name is None:
        if topic.topic_id == NULL_UUID:
            return _fail(
                result, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
            )
        result.name = image.names_by_id.get(topic.topic_id)
        return result if result.name is not None else _fail(result, ErrorCode.UNKNOWN_TOPIC_ID)
    if topic.name not in image.topics:
        return _fail(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    result.topic_id = image.topics[topic.name].topic_id
    return result


def _fail(
    result: DeletableTopicResult, code: int, message: str | None = None
) -> DeletableTopicResult:
    result.error_code = code
    result.error_message = message or ErrorCode.of(code).message
    return result

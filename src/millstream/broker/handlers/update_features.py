"""UpdateFeatures: raise or lower the finalized level of features; all updates or none (KIP-584).

* v0: ``allow_downgrade``, which means a safe downgrade here. v1: the type of the update, and
  validate-only.
* v2: the response has one error code for all updates, without results for each.

The controller executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.control.features import SAFE_DOWNGRADE, UPGRADE
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    pace = Pace()
    updates = []
    for update in request.feature_updates:
        await pace.rest()
        kind = update.upgrade_type
        if context.version == 0:
            kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
        updates.append((update.feature, update.max_version_level, kind))
    try:
        outcomes = await services.local_controller.update_features(
            updates, validate_only=request.validate_only
        )
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the request goes to the next controller
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    services.coordinators.reconfigure()
    for outcome in outcomes.values():
        if outcome.code:
            return UpdateFeaturesResponse(
                error_code=outcome.code,
                error_message="The update failed for all features since the following feature had an error: "
                f"{outcome.message}",
            )
    return UpdateFeaturesResponse(
        error_message=None,
        results=[UpdatableFeatureResult(feature=name, error_message=None) for name in outcomes],
    )

"""The features of KIP-584: the levels that this build supports, and the rules for updates."""

from __future__ import annotations

from typing import NamedTuple

from millstream.core.errors import ApiError, ErrorCode


class Feature(NamedTuple):
    """A feature and its supported levels; a new cluster starts with ``initial``."""

    name: str
    lowest: int
    highest: int
    initial: int


FEATURES: tuple[Feature, ...] = (
    Feature("group.version", 0, 1, 1),
    Feature("transaction.version", 0, 2, 2),
)
_BY_NAME = {feature.name: feature for feature in FEATURES}

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def updated_level(name: str, current: int, level: int, upgrade_type: int) -> int:
    """Return the level after an update; raise ApiError if the update is not allowed."""
    feature = _BY_NAME.get(name)
    if feature is None:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. "
            "The controller does not support the given feature.",
        )
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            "The controller does not support the given upgrade type.",
        )
    if not feature.lowest <= level <= feature.highest:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. This broker only supports versions "
            f"{feature.lowest}-{feature.highest}",
        )
    if level < current and upgrade_type == UPGRADE:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. Can't downgrade the version of this feature "
            "without setting the upgrade type to either safe or unsafe downgrade.",
        )
    if level > current and upgrade_type != UPGRADE:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. Can't downgrade to a newer version.",
        )
    return level

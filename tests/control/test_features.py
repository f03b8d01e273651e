"""Updates of feature levels."""

from __future__ import annotations

import pytest

from millstream.control.features import FEATURES, SAFE_DOWNGRADE, UPGRADE, updated_level
from millstream.core.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type"),
    [("no.such.feature", 1, UPGRADE), (FEATURES[0].name, 99, UPGRADE), (FEATURES[0].name, 0, 9)],
)
def test_invalid_feature_level_is_rejected(name: str, level: int, upgrade_type: int) -> None:
    with pytest.raises(ApiError) as error:
        updated_level(name, 0, level, upgrade_type)
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_update_to_the_same_level_is_accepted() -> None:
    for feature in FEATURES:
        assert (
            updated_level(feature.name, feature.initial, feature.initial, UPGRADE)
            == feature.initial
        )
        assert (
            updated_level(feature.name, feature.lowest, feature.lowest, SAFE_DOWNGRADE)
            == feature.lowest
        )

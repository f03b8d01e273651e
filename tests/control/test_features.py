"""Feature levels: accepted and refused."""

from __future__ import annotations

import pytest

from millstream.control.features import FEATURES, SAFE_DOWNGRADE, UPGRADE, updated_level
from millstream.core.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type"),
    [("no.such.feature", 1, UPGRADE), (FEATURES[0].name, 99, UPGRADE), (FEATURES[0].name, 0, 9)],
)
def test_a_feature_level_that_cannot_be_is_refused(name: str, level: int, upgrade_type: int) -> None:
    with pytest.raises(ApiError) as error:
        updated_level(name, 0, level, upgrade_type)
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_feature_may_stay_where_it_is() -> None:
    for feature in FEATURES:
        assert updated_level(feature.name, feature.initial, feature.initial, UPGRADE) == feature.initial
        assert updated_level(feature.name, feature.lowest, feature.lowest, SAFE_DOWNGRADE) == feature.lowest

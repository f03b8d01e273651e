"""``Admin`` with a part per subject: topics, configs, groups, offsets, reassignments, transactions.

``Admin`` is loaded on first use: most of the parts need no librdkafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin as Admin


def __getattr__(name: str) -> Any:
    if name != "Admin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.client.admin.client import Admin

    return Admin

"""Where things are: the repository, its tests, and the programs among the helpers that tests start
as processes.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SUPPORT = TESTS / "support"

"""``python -m millstream``: the same as the ``millstream`` command."""

from __future__ import annotations

import sys

from millstream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

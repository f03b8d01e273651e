"""The directory of a demo: deleted after success, kept with its logs after a failure."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.cli.support import declare
from millstream.client.errors import ClientError

PREFIX = "millstream-demo-"


class DemoFailed(Exception):
    """The demo cannot continue; the message may have several lines."""


class DemoDirectory:
    """A temporary directory; ``keep`` means that the run failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keep = False

    def logs(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*.log") if path.stat().st_size)


@contextmanager
def demo_directory() -> Iterator[DemoDirectory]:
    """Yield a directory, which is deleted at the end, also after Ctrl-C.

    After an error, or with ``keep``, it stays and its logs are listed on stderr.
    """
    directory = DemoDirectory(Path(tempfile.mkdtemp(prefix=PREFIX)))
    try:
        yield directory
    except (ClientError, DemoFailed) as error:
        directory.keep = True
        sys.stdout.flush()
        print(f"\nerror: {error}", file=sys.stderr)
        raise declare.Exit(1) from None
    except Exception:
        directory.keep = True
        raise
    finally:
        if directory.keep:
            _report(directory)
        else:
            shutil.rmtree(directory.path, ignore_errors=True)


def _report(directory: DemoDirectory) -> None:
    sys.stdout.flush()
    lines = [f"the demo failed; its files are kept in {directory.path}"]
    lines += [f"  log  {path}" for path in directory.logs()]
    print("\n".join(lines), file=sys.stderr, flush=True)

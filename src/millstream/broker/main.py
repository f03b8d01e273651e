"""``millstream serve``: run one broker in the foreground until SIGTERM or Ctrl-C.

Imported without the command-line library, so that a broker starts in a fraction of a second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.core.config import BrokerConfig
from millstream.core.settings import Given, SettingError, parse_properties

if TYPE_CHECKING:
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

logger = logging.getLogger("millstream")

_T = TypeVar("_T")

USAGE = """\
Usage: millstream serve [--config FILE] [--set NAME=VALUE ...] [--existing]

Runs one broker in the foreground; Ctrl-C or SIGTERM stops it cleanly.

  --config FILE      settings in a .properties file, under Kafka's names
  --set NAME=VALUE   one setting; overrides the file; may be repeated
  --existing         do not start if a data directory is new or empty: for unit
                     files and containers whose disk may not be mounted
  --help             this text

Without settings: PLAINTEXT://127.0.0.1:9092, data in ./data.
"""

_ENOUGH_FILES = 10_000


class UsageError(Exception):
    """An invalid command line."""


def serve_command(argv: list[str]) -> int:
    """Return the exit code: 0 after a clean shutdown, 1 after a failure, 2 for a usage error."""
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE, end="")
        return 0
    existing = "--existing" in argv
    try:
        settings = _settings([word for word in argv if word != "--existing"])
    except UsageError as error:
        print(f"millstream serve: {error}\nTry: millstream serve --help", file=sys.stderr)
        return 2
    except SettingError as error:
        return _report(error)
    try:
        config = BrokerConfig.from_texts({name: setting.text for name, setting in settings.items()})
    except SettingError as error:
        return _report(error, settings)
    _set_up_logging()
    _raise_file_limit()
    if inert := config.inert_names():
        logger.warning("accepted for compatibility, without effect: %s", ", ".join(inert))
    return _run(_serve(config, settings, existing=existing))


def _report(error: Exception, settings: Mapping[str, Given] | None = None) -> int:
    """Print why the broker does not start; for a setting, with the place where it was given."""
    name = (error.setting if isinstance(error, SettingError) else None) or ""
    source = f"{settings[name].where}: " if settings and name in settings else ""
    print(f"millstream serve: {source}{error}", file=sys.stderr)
    return 1


def _settings(argv: list[str]) -> dict[str, Given]:
    """Return the settings of the file, overridden by those of --set."""
    from_file: dict[str, Given] = {}
    from_options: dict[str, Given] = {}
    words = iter(argv)
    for word in words:
        option, separator, value = word.partition("=")
        if option not in ("--config", "--set"):
            raise UsageError(f"unknown argument {word}")
        if not separator:
            value = next(words, "")
        if option == "--config":
            from_file |= _read_file(value)
        else:
            name, separator, text = value.partition("=")
            if not separator or not name.strip():
                raise UsageError(f"--set takes NAME=VALUE, not {value!r}")
            from_options[name.strip()] = Given(text, f"--set {name.strip()}")
    return from_file | from_options


def _read_file(path: str) -> dict[str, Given]:
    if not path:
        raise UsageError("--config takes the path of a file")
    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read(), path)
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"cannot read {path}: it is not text") from None


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("millstream")
    root.addHandler(handler)
    root.setLevel(os.environ.get("MILLSTREAM_LOG_LEVEL", "INFO").upper())
    root.propagate = False


def _raise_file_limit() -> None:
    """Raise the limit of open files: every open segment and every connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        limit = soft
    if limit < _ENOUGH_FILES:
        logger.warning(
            "only %d files may be open at a time; many partitions or connections need more (raise 'ulimit -Hn')",
            limit,
        )


def _run(main: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop if it is installed, unless MILLSTREAM_LOOP=asyncio."""
    if os.environ.get("MILLSTREAM_LOOP", "uvloop") != "asyncio":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(main)
    with asyncio.Runner() as runner:
        return runner.run(main)


async def _serve(
    config: BrokerConfig, settings: Mapping[str, Given], *, existing: bool = False
) -> int:
    from millstream.broker.app import Broker, StartError
    from millstream.ports.coordination import CoordinationError

    stop = _stop_on_signals()
    try:
        coordination = await _unless(stop, _open_coordination(config))
    except (SettingError, CoordinationError) as error:
        return _report(error, settings)
    if stop.done():
        return 0
    broker = Broker(config, coordination=coordination, existing=existing)
    try:
        await broker.start()
    except (SettingError, StartError) as error:
        _report(error, settings)
        await broker.stop()
        if coordination is not None:
            await coordination.close()
        return 1
    if coordination is not None:
        coordination.watch_loop()
    # Objects created so far live as long as the broker, so the collector can ignore them.
    gc.collect()
    gc.freeze()
    # A collection of the middle generation traverses at most 100,000 objects, in about 10 ms.
    gc.set_threshold(20_000, 5, 200)
    listeners = ", ".join(str(endpoint) for endpoint in broker.advertised)
    data = ", ".join(_short_path(path) for path in config.log_dirs)
    print(
        f"millstream ready: node {config.node_id}, {listeners}, data {data}, {_age_s():.2f} s",
        flush=True,
    )
    reasons_to_stop: list[asyncio.Future[Any]] = [stop, broker.failed]
    await asyncio.wait(reasons_to_stop, return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        print(f"millstream serve: {broker.failed.result()}", file=sys.stderr)
    await broker.stop()
    return 1 if broker.failed.done() else 0


async def _open_coordination(config: BrokerConfig) -> ZooKeeperCoordination | None:
    """Connect to the ZooKeeper of the cluster; None for a single broker with its own store."""
    connect = config.get("zookeeper.connect")
    if not connect:
        return None
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

    session_ms = config.integer("zookeeper.session.timeout.ms")
    try:
        zookeeper = ZooKeeperCoordination(str(connect), session_timeout_ms=session_ms)
    except ValueError as error:
        raise SettingError(
            f"Invalid value {connect} for configuration zookeeper.connect: {error}",
            "zookeeper.connect",
        ) from None
    timeout_ms = config.get("zookeeper.connection.timeout.ms")
    return await zookeeper.open(timeout_ms if isinstance(timeout_ms, int) else session_ms)


async def _unless(stop: asyncio.Future[None], work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the result of the work, or None if a signal stops it first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        return None
    return task.result()


def _stop_on_signals() -> asyncio.Future[None]:
    """Return a future that the first SIGTERM or SIGINT completes; a second one ends the process."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if stop.done():
            os._exit(128 + number)
        stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


def _short_path(path: str) -> str:
    relative = os.path.relpath(path)
    return (
        path
        if os.path.isabs(path)
        else f"./{relative}"
        if not relative.startswith("..")
        else relative
    )


def _age_s() -> float:
    """Return the seconds since this process was started, from the kernel if possible."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return time.process_time()

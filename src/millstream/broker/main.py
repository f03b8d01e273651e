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
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.broker import ready_report
from millstream.broker.ephemeral import ParentWatch, end_like_kill, ephemeral_settings
from millstream.core.config import BrokerConfig
from millstream.core.settings import Given, SettingError, parse_properties

if TYPE_CHECKING:
    from millstream.broker.app import Broker
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

logger = logging.getLogger("millstream")

_T = TypeVar("_T")

USAGE = """\
Usage: millstream serve [--config FILE] [--set NAME=VALUE ...] [--existing]
                        [--ephemeral] [--format text|json] [--ready-fd N]

Runs one broker in the foreground; Ctrl-C or SIGTERM stops it cleanly.

  --config FILE      settings in a .properties file, under Kafka's names
  --set NAME=VALUE   one setting; overrides the file; may be repeated
  --existing         do not start if a data directory is new or empty: for unit
                     files and containers whose disk may not be mounted
  --ephemeral        for tests: a free port and temporary data, which is removed
                     at the end; the broker ends with its parent process, or when
                     a pipe on standard input is closed
  --format FORMAT    print that the broker is ready as a line of text or of json
  --ready-fd N       also write that line as JSON to file descriptor N, and close it
  --help             this text

Without settings: PLAINTEXT://127.0.0.1:9092, data in ./data.
"""

_ENOUGH_FILES = 10_000
_FLAGS = ("--existing", "--ephemeral")
_FORMATS = ("text", "json")


class UsageError(Exception):
    """An invalid command line."""


def serve_command(argv: list[str], defaults: Mapping[str, Given] | None = None) -> int:
    """Return the exit code: 0 after a clean shutdown, 1 after a failure, 2 for a usage error.

    The file and the options override ``defaults``.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE, end="")
        return 0
    try:
        options = _parse(argv)
        settings = options.settings(defaults or {})
    except UsageError as error:
        print(f"millstream serve: {error}\nTry: millstream serve --help", file=sys.stderr)
        return 2
    except SettingError as error:
        return _report(error)
    try:
        config = BrokerConfig.from_texts({name: setting.text for name, setting in settings.items()})
    except SettingError as error:
        return _report(error, settings)
    _set_up_logging("WARNING" if options.ephemeral else "INFO")
    _raise_file_limit()
    if inert := config.inert_names():
        logger.warning("accepted for compatibility, without effect: %s", ", ".join(inert))
    serve = _serve_ephemeral if options.ephemeral else _serve
    return _run(serve(config, settings, options))


def _report(error: Exception, settings: Mapping[str, Given] | None = None) -> int:
    """Print why the broker does not start; for a setting, with the place where it was given."""
    name = (error.setting if isinstance(error, SettingError) else None) or ""
    source = f"{settings[name].where}: " if settings and name in settings else ""
    print(f"millstream serve: {source}{error}", file=sys.stderr)
    return 1


@dataclass
class _Options:
    """The words of the command line."""

    from_file: dict[str, Given] = field(default_factory=dict)
    from_options: dict[str, Given] = field(default_factory=dict)
    existing: bool = False
    ephemeral: bool = False
    json: bool = False
    ready_fd: int | None = None

    def settings(self, defaults: Mapping[str, Given]) -> dict[str, Given]:
        """Return the settings of the file, overridden by those of --set."""
        from_file = {**defaults, **self.from_file}
        if self.ephemeral:
            return ephemeral_settings(from_file, self.from_options)
        return from_file | self.from_options


def _parse(argv: list[str]) -> _Options:
    options = _Options()
    words = iter(argv)
    for word in words:
        if word in _FLAGS:
            setattr(options, word.removeprefix("--"), True)
            continue
        option, separator, value = word.partition("=")
        parse = _WITH_VALUE.get(option)
        if parse is None:
            raise UsageError(f"unknown argument {word}")
        parse(options, value if separator else next(words, ""))
    if options.ephemeral and options.existing:
        raise UsageError("--ephemeral creates new data and --existing refuses it; remove one")
    return options


def _parse_config(options: _Options, path: str) -> None:
    options.from_file |= _read_file(path)


def _parse_set(options: _Options, pair: str) -> None:
    name, separator, text = pair.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"--set takes NAME=VALUE, not {pair!r}")
    options.from_options[name.strip()] = Given(text, f"--set {name.strip()}")


def _parse_format(options: _Options, text: str) -> None:
    if text not in _FORMATS:
        raise UsageError(f"--format takes {' or '.join(_FORMATS)}, not {text!r}")
    options.json = text == "json"


def _parse_ready_fd(options: _Options, text: str) -> None:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"--ready-fd takes the number of a file descriptor, not {text!r}")
    options.ready_fd = int(text)
    try:
        os.set_inheritable(options.ready_fd, False)
    except (OSError, OverflowError):
        raise UsageError(
            f"--ready-fd {text} is not open; the parent process must pass it on, "
            "such as with pass_fds in Python, ExtraFiles in Go or stdio in Node"
        ) from None


_WITH_VALUE: dict[str, Callable[[_Options, str], None]] = {
    "--config": _parse_config,
    "--set": _parse_set,
    "--format": _parse_format,
    "--ready-fd": _parse_ready_fd,
}


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


def _set_up_logging(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("millstream")
    root.addHandler(handler)
    root.setLevel(os.environ.get("MILLSTREAM_LOG_LEVEL", level).upper())
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


async def _serve(config: BrokerConfig, settings: Mapping[str, Given], options: _Options) -> int:
    from millstream.ports.coordination import CoordinationError

    stop = _stop_on_signals()
    try:
        coordination = await _unless(stop, _open_coordination(config))
    except (SettingError, CoordinationError) as error:
        return _report(error, settings)
    if stop.done():
        return 0
    broker = await _start(config, settings, options, coordination)
    if broker is None:
        return 1
    await _wait_for_end(broker, stop)
    await broker.stop()
    return 1 if broker.failed.done() else 0


async def _serve_ephemeral(
    config: BrokerConfig, settings: Mapping[str, Given], options: _Options
) -> int:
    """Serve with temporary data until a signal, or until the parent is gone.

    The data is created and removed while signals are handled, so that they leave nothing behind.
    """
    from millstream.broker.temporary_data import temporary_data

    with ExitStack() as resources:
        stop = _stop_on_signals(signal.SIGHUP, before_exit=resources.close)
        ParentWatch(partial(_stop_without_parent, stop)).start()
        data = resources.enter_context(temporary_data())
        texts = {name: setting.text for name, setting in settings.items()}
        config = BrokerConfig.from_texts(texts | {"log.dirs": str(data)})
        broker = await _start(config, settings, options, None)
        if broker is None:
            return 1
        await _wait_for_end(broker, stop)
        await end_like_kill(broker)
        return 1 if broker.failed.done() else 0


def _stop_without_parent(stop: asyncio.Future[None], reason: str) -> None:
    if not stop.done():
        logger.warning("stopping: %s", reason)
        stop.set_result(None)


async def _start(
    config: BrokerConfig,
    settings: Mapping[str, Given],
    options: _Options,
    coordination: ZooKeeperCoordination | None,
) -> Broker | None:
    """Start a broker and print that it is ready; None if that failed, after printing why."""
    from millstream.broker.app import Broker, StartError

    broker = Broker(config, coordination=coordination, existing=options.existing)
    try:
        await broker.start()
    except (SettingError, StartError) as error:
        _report(error, settings)
        await broker.stop()
        if coordination is not None:
            await coordination.close()
        return None
    if coordination is not None:
        coordination.watch_loop()
    # Objects created so far live as long as the broker, so the collector can ignore them.
    gc.collect()
    gc.freeze()
    # A collection of the middle generation traverses at most 60,000 objects. With twice as many it
    # took 55 ms in the middle of a large request.
    gc.set_threshold(20_000, 2, 500)
    _print_line(ready_report.json_line(broker) if options.json else ready_report.text_line(broker))
    if options.ready_fd is not None:
        ready_report.write_and_close(options.ready_fd, ready_report.json_line(broker))
    return broker


def _print_line(line: str) -> None:
    """Print a line; without a reader it is lost, but the broker continues."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _wait_for_end(broker: Broker, stop: asyncio.Future[None]) -> None:
    reasons_to_stop: list[asyncio.Future[Any]] = [stop, broker.failed]
    await asyncio.wait(reasons_to_stop, return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        print(f"millstream serve: {broker.failed.result()}", file=sys.stderr)


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


def _stop_on_signals(
    *more: signal.Signals, before_exit: Callable[[], None] = lambda: None
) -> asyncio.Future[None]:
    """Return a future that the first SIGTERM or SIGINT completes; a second one ends the process."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    signalled = False

    def on_signal(number: int) -> None:
        nonlocal signalled
        if signalled:
            before_exit()
            os._exit(128 + number)
        signalled = True
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT, *more):
        loop.add_signal_handler(number, on_signal, number)
    return stop

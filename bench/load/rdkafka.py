"""librdkafka at C speed: the library in confluent-kafka, called through ctypes.

confluent-kafka's `produce_batch` reads a dict per message and reaches about one million messages
per second on one core, so the broker would wait for the client. Here a prepared array of messages
goes to `rd_kafka_produce_batch`, and consumed messages never become Python objects. Only the
functions that the generators need are bound.
"""

import ctypes as c
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

PRODUCER, CONSUMER = 0, 1
COPY_PAYLOAD = 2  # RD_KAFKA_MSG_F_COPY, as in nearly every application
OFFSET_BEGINNING = -2
QUEUE_FULL = -184  # RD_KAFKA_RESP_ERR__QUEUE_FULL
_ERROR_BYTES = 512


class Message(c.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c.c_int),
        ("topic", c.c_void_p),
        ("partition", c.c_int32),
        ("payload", c.c_void_p),
        ("length", c.c_size_t),
        ("key", c.c_void_p),
        ("key_length", c.c_size_t),
        ("offset", c.c_int64),
        ("private", c.c_void_p),
    )


class TopicPartition(c.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c.c_char_p),
        ("partition", c.c_int32),
        ("offset", c.c_int64),
        ("metadata", c.c_void_p),
        ("metadata_size", c.c_size_t),
        ("opaque", c.c_void_p),
        ("err", c.c_int),
        ("private", c.c_void_p),
    )


class TopicPartitions(c.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", c.c_int), ("size", c.c_int), ("elements", c.POINTER(TopicPartition)))


_DELIVERY = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Message), c.c_void_p)


def library_path() -> Path:
    """Return the path of librdkafka in the wheel of confluent-kafka.

    On Linux it is beside the package, on macOS inside it.
    """
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise RuntimeError("confluent-kafka is not installed")
    package = Path(spec.origin).parent
    folders = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    paths = sorted(p for folder in folders for p in folder.glob("librdkafka*"))
    if not paths:
        raise RuntimeError(
            "confluent-kafka here bundles no librdkafka; install its wheel from PyPI"
        )
    return paths[0]


def _load() -> c.CDLL:
    lib = c.CDLL(str(library_path()))
    pointer, text, size = c.c_void_p, c.c_char_p, c.c_size_t
    returns_pointer = {
        "conf_new": (),
        "new": (c.c_int, pointer, text, size),
        "topic_new": (pointer, text, pointer),
        "queue_new": (pointer,),
        "topic_partition_list_new": (c.c_int,),
        "topic_partition_list_add": (pointer, text, c.c_int32),
        "mock_cluster_new": (pointer, c.c_int),
        "init_transactions": (pointer, c.c_int),
        "begin_transaction": (pointer,),
        "commit_transaction": (pointer, c.c_int),
    }
    returns_int = {
        "conf_set": (pointer, text, text, text, size),
        "produce_batch": (pointer, c.c_int32, c.c_int, pointer, c.c_int),
        "produce": (pointer, c.c_int32, c.c_int, pointer, size, pointer, size, pointer),
        "poll": (pointer, c.c_int),
        "flush": (pointer, c.c_int),
        "outq_len": (pointer,),
        "last_error": (),
        "consume_start_queue": (pointer, c.c_int32, c.c_int64, pointer),
        "consume_stop": (pointer, c.c_int32),
        "consume_callback_queue": (pointer, c.c_int, pointer, pointer),
        "position": (pointer, pointer),
        "mock_topic_create": (pointer, text, c.c_int, c.c_int),
        "query_watermark_offsets": (pointer, text, c.c_int32, pointer, pointer, c.c_int),
    }
    for table, result in ((returns_pointer, pointer), (returns_int, c.c_int)):
        for name, arguments in table.items():
            function = getattr(lib, f"rd_kafka_{name}")
            function.argtypes, function.restype = arguments, result
    lib.rd_kafka_conf_set_dr_msg_cb.argtypes = (pointer, _DELIVERY)
    lib.rd_kafka_conf_set_dr_msg_cb.restype = None
    lib.rd_kafka_mock_cluster_bootstraps.argtypes = (pointer,)
    lib.rd_kafka_mock_cluster_bootstraps.restype = text
    lib.rd_kafka_err2name.argtypes, lib.rd_kafka_err2name.restype = (c.c_int,), text
    lib.rd_kafka_error_string.argtypes, lib.rd_kafka_error_string.restype = (pointer,), text
    lib.rd_kafka_version_str.restype = text
    lib.rd_kafka_topic_partition_list_destroy.argtypes = (pointer,)
    lib.rd_kafka_topic_partition_list_destroy.restype = None
    lib.rd_kafka_destroy.argtypes, lib.rd_kafka_destroy.restype = (pointer,), None
    return lib


class Rdkafka:
    """One librdkafka handle.

    It is not thread-safe, and for short programs: only `close` frees memory.
    """

    def __init__(
        self,
        kind: int,
        settings: Mapping[str, object],
        on_delivery: Callable[[int], None] | None = None,
    ) -> None:
        self.lib = _load()
        self._error = c.create_string_buffer(_ERROR_BYTES)
        conf = self.lib.rd_kafka_conf_new()
        for name, value in settings.items():
            if self.lib.rd_kafka_conf_set(
                conf, name.encode(), _text(value), self._error, _ERROR_BYTES
            ):
                raise ValueError(self._error.value.decode())
        if on_delivery is not None:
            report = on_delivery
            self._delivery = _DELIVERY(lambda _rk, message, _opaque: report(message[0].err))
            self.lib.rd_kafka_conf_set_dr_msg_cb(conf, self._delivery)
        self.handle = self.lib.rd_kafka_new(kind, conf, self._error, _ERROR_BYTES)
        if not self.handle:
            raise RuntimeError(self._error.value.decode())

    def version(self) -> str:
        return str(self.lib.rd_kafka_version_str().decode())

    def error_name(self, code: int) -> str:
        return str(self.lib.rd_kafka_err2name(code).decode())

    def topic(self, name: str) -> int:
        return int(self.lib.rd_kafka_topic_new(self.handle, name.encode(), None))

    def poll(self, timeout_ms: int) -> int:
        return int(self.lib.rd_kafka_poll(self.handle, timeout_ms))

    def flush(self, timeout_ms: int) -> None:
        if self.lib.rd_kafka_flush(self.handle, timeout_ms):
            waiting = self.lib.rd_kafka_outq_len(self.handle)
            raise TimeoutError(
                f"{waiting} messages not acknowledged after {timeout_ms / 1000:.0f} s"
            )

    def transaction(self, step: str, *arguments: int) -> None:
        """Run `init_transactions`, `begin_transaction` or `commit_transaction`."""
        error = getattr(self.lib, f"rd_kafka_{step}")(self.handle, *arguments)
        if error:
            raise RuntimeError(f"{step}: {self.lib.rd_kafka_error_string(error).decode()}")

    def end_offset(self, topic: str, partition: int, timeout_ms: int = 10_000) -> int:
        low, high = c.c_int64(), c.c_int64()
        code = self.lib.rd_kafka_query_watermark_offsets(
            self.handle, topic.encode(), partition, c.byref(low), c.byref(high), timeout_ms
        )
        if code:
            raise RuntimeError(f"end offset of {topic}-{partition}: {self.error_name(code)}")
        return high.value

    def positions(self, topic: str, partitions: int) -> list[int]:
        """Return the next offset of each partition for this consumer; below 0 before the first."""
        handle = self.lib.rd_kafka_topic_partition_list_new(partitions)
        for partition in range(partitions):
            self.lib.rd_kafka_topic_partition_list_add(handle, topic.encode(), partition)
        self.lib.rd_kafka_position(self.handle, handle)
        listed = c.cast(handle, c.POINTER(TopicPartitions))[0]
        offsets = [listed.elements[i].offset for i in range(listed.count)]
        self.lib.rd_kafka_topic_partition_list_destroy(handle)
        return offsets

    def close(self) -> None:
        self.lib.rd_kafka_destroy(self.handle)


def _text(value: object) -> bytes:
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()

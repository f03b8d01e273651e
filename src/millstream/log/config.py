"""The settings of a topic that its log obeys. `core/topic_settings.py` declares their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from zlib import crc32

from millstream.core.settings import LONG_MAX
from millstream.core.topic_settings import TOPIC_SETTINGS


def _default(setting: str) -> Any:
    return TOPIC_SETTINGS[setting].default


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Every field is Kafka's topic setting of the same name, with dots for underscores."""

    segment_bytes: int = _default("segment.bytes")
    segment_ms: int = _default("segment.ms")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    segment_index_bytes: int = _default("segment.index.bytes")
    index_interval_bytes: int = _default("index.interval.bytes")
    retention_ms: int = _default("retention.ms")
    retention_bytes: int = _default("retention.bytes")
    cleanup_policy: frozenset[str] = frozenset(_default("cleanup.policy"))
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_type: str = _default("message.timestamp.type")
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    compression_type: str = _default("compression.type")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_zstd_level: int = _default("compression.zstd.level")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    delete_retention_ms: int = _default("delete.retention.ms")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")
    # Accepted for compatibility: Linux allocates late, so it would change nothing.
    preallocate: bool = _default("preallocate")
    message_validation_deep: bool = _default("message.validation.deep")
    # Whether batches are appended as sent, without reading their records. Follows from the others.
    takes_as_sent: bool = field(init=False, default=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounded = self.message_timestamp_before_max_ms != LONG_MAX and not self.append_time
        recompresses = self.compression_type != "producer"
        reads_records = bounded or recompresses or self.compact or self.message_validation_deep
        object.__setattr__(self, "takes_as_sent", not reads_records)

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def from_topic_settings(cls, settings: Mapping[str, Any]) -> LogConfig:
        """Return a config from Kafka's names and parsed values. Other names are ignored."""
        return DEFAULT.with_topic_settings(settings)

    def with_topic_settings(self, settings: Mapping[str, Any]) -> LogConfig:
        known = {
            field: settings[name]
            for name, field in _FIELDS.items()
            if settings.get(name) is not None
        }
        if "cleanup_policy" in known:
            known["cleanup_policy"] = _policies(known["cleanup_policy"])
        if settings.get("internal.segment.bytes") is not None:
            known["segment_bytes"] = settings["internal.segment.bytes"]
        return replace(self, **known)

    def jitter_ms(self, directory: str, base_offset: int) -> int:
        """Return how much earlier this segment rolls, so that many logs do not roll at once.

        It is the same after every start.
        """
        bound = min(self.segment_jitter_ms, self.segment_ms)
        return crc32(f"{directory}/{base_offset}".encode()) % bound if bound > 0 else 0


def _policies(value: Any) -> frozenset[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return frozenset(part.strip() for part in parts if part.strip())


_FIELDS: Final = {row.name.replace("_", "."): row.name for row in fields(LogConfig) if row.init}
DEFAULT: Final = LogConfig()

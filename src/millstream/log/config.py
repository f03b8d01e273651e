"""The settings of a topic that its log obeys, with Apache Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from zlib import crc32

LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Every field is Kafka's topic setting of the same name, with dots for underscores."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    preallocate: bool = False  # accepted for compatibility; Linux allocates late, so it would change nothing
    message_validation_deep: bool = False
    # Whether batches are appended as producers send them, without a look at their records. Follows from the others.
    takes_as_sent: bool = field(init=False, default=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounded = self.message_timestamp_before_max_ms != LONG_MAX and not self.append_time
        codec_given = self.compression_type != "producer"
        looks = bounded or codec_given or self.compact or self.message_validation_deep
        object.__setattr__(self, "takes_as_sent", not looks)

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
        """From Kafka's names and parsed values; names that the log has no use for are left aside."""
        return DEFAULT.with_topic_settings(settings)

    def with_topic_settings(self, settings: Mapping[str, Any]) -> LogConfig:
        known = {field: settings[name] for name, field in _FIELDS.items() if settings.get(name) is not None}
        if "cleanup_policy" in known:
            known["cleanup_policy"] = _policies(known["cleanup_policy"])
        if settings.get("internal.segment.bytes") is not None:
            known["segment_bytes"] = settings["internal.segment.bytes"]
        return replace(self, **known)

    def jitter_ms(self, directory: str, base_offset: int) -> int:
        """How much earlier this segment rolls, so that many logs do not roll at once; the same at every start."""
        bound = min(self.segment_jitter_ms, self.segment_ms)
        return crc32(f"{directory}/{base_offset}".encode()) % bound if bound > 0 else 0


def _policies(value: Any) -> frozenset[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return frozenset(part.strip() for part in parts if part.strip())


_FIELDS: Final = {one.name.replace("_", "."): one.name for one in fields(LogConfig) if one.init}
DEFAULT: Final = LogConfig()

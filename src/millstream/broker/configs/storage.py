"""The current settings of logs, housekeeping, cleaner and scrubber."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.config import BrokerConfig
from millstream.log.management.housekeeping import HousekeepingSettings
from millstream.log.management.manager import ManagerSettings

if TYPE_CHECKING:
    from millstream.log.cleaner.background import CleanerSettings
    from millstream.log.integrity.scrubber import ScrubSettings


def manager_settings(config: BrokerConfig) -> ManagerSettings:
    return ManagerSettings(
        producer_expiration_ms=config.integer("producer.id.expiration.ms"),
        writeback_bytes=config.integer("log.writeback.bytes"),
        delete_delay_ms=config.integer("log.segment.delete.delay.ms"),
        verify_transactions=config.flag("transaction.partition.verification.enable"),
        verify_reads=config.flag("log.read.verification.enable"),
    )


def housekeeping_settings(config: BrokerConfig) -> HousekeepingSettings:
    return HousekeepingSettings(
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        flush_offset_checkpoint_interval_ms=config.integer(
            "log.flush.offset.checkpoint.interval.ms"
        ),
        flush_start_offset_checkpoint_interval_ms=config.integer(
            "log.flush.start.offset.checkpoint.interval.ms"
        ),
        high_watermark_checkpoint_interval_ms=config.integer(
            "replica.high.watermark.checkpoint.interval.ms"
        ),
        producer_expiration_check_interval_ms=config.integer(
            "producer.id.expiration.check.interval.ms"
        ),
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    from millstream.log.cleaner.background import CleanerSettings

    return CleanerSettings(
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
        load_factor=config.number("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
        io_max_bytes_per_s=config.number("log.cleaner.io.max.bytes.per.second"),
        max_decompressed_bytes=config.integer("record.decompressed.max.bytes"),
    )


def scrub_settings(config: BrokerConfig) -> ScrubSettings:
    from millstream.log.integrity.scrubber import ScrubSettings

    rate = config.integer("log.scrub.bytes.per.second")
    return ScrubSettings(rate, config.integer("log.scrub.interval.ms") / 1000)

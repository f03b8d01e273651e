"""Broker settings for transactions; the fields have the names of Kafka's settings."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The settings of a shard. The host replaces ``shard.settings`` when a setting changes."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10 * 1000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 60 * 60 * 1000
    # Memory for the transactional ids of this shard. Above it, idle ids expire early.
    transactional_ids_max_bytes: int = sys.maxsize
    transaction_two_phase_commit_enable: bool = False
    # Finalized level of the feature transaction.version. The coordinator uses it if no client
    # request decides the version.
    transaction_version: int = 2

"""Transaction indexes: Kafka's bytes and look-ups."""

from __future__ import annotations

import struct

import pytest

from millstream.log.segments import transaction_index
from millstream.log.segments.transaction_index import AbortedTransaction


def test_a_transaction_index_has_kafkas_bytes() -> None:
    entries = [AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 15, 30, 31)]
    data = transaction_index.encode(entries)
    assert data == struct.pack(">hqqqqhqqqq", 0, 7, 10, 20, 15, 0, 8, 15, 30, 31)
    assert transaction_index.parse(data) == entries
    assert transaction_index.parse(data[:-1]) == entries[:1]
    with pytest.raises(ValueError, match="version 1"):
        transaction_index.parse(struct.pack(">hqqqq", 1, 7, 10, 20, 15))


def test_search_for_aborted_transactions_stops_early() -> None:
    entries = [AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 15, 30, 31)]
    assert transaction_index.search(entries, 0, 12) == ([entries[0]], True)
    assert transaction_index.search(entries, 21, 40) == ([entries[1]], False)
    assert transaction_index.search(entries, 0, 100) == (entries, False)
    assert transaction_index.search(entries, 31, 100) == ([], False)

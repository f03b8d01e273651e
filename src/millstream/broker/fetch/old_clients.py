"""Responses for clients of before Kafka 0.11 (Fetch v0-v3): message sets instead of batches."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from millstream.broker.fetch.down_conversion import convert_for_old_client, magic_of_version
from millstream.broker.fetch.partition_reader import KNOWS_BATCHES
from millstream.broker.fetch.state import Fetch
from millstream.broker.net.responses import Encoded, ResponsePart
from millstream.ports.files import FileSlice
from millstream.replication.fetch_session import PartitionFetch
from millstream.wire.fetch_response import PartitionData


async def respond(fetch: Fetch) -> Encoded:
    """Encode the response of any client; convert the records first if the client is old."""
    if fetch.context.version < KNOWS_BATCHES and fetch.size:
        fetch.rows = [(row, await converted(fetch, row, data)) for row, data in fetch.rows]
    return fetch.respond()


async def converted(
    fetch: Fetch, row: PartitionFetch, data: PartitionData[ResponsePart]
) -> PartitionData[ResponsePart]:
    """Convert the records of a partition to the client's message format.

    Control batches leave nothing, and an old client could never step over them. If nothing is left,
    read the records behind them.
    """
    services = fetch.services
    # Bytes of the other partitions: the records that converted to nothing take no room, so that a
    # client with a small limit still gets one batch.
    taken = fetch.size - data.size
    while isinstance(data.records, FileSlice):
        end_offset = fetch.reader.end_offsets[row.key]
        data = await convert_for_old_client(
            services.convert_worker,
            data,
            data.records,
            first_offset=row.fetch_offset,
            magic=magic_of_version(fetch.context.version),
            max_decompressed_bytes=services.max_decompressed_bytes,
        )
        if data.size == 0 and not data.error_code and end_offset > row.fetch_offset:
            row = replace(row, fetch_offset=end_offset)
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(None, fetch.reader.read, row, taken, True)
    return data

"""Record batches: layout, checksum, compression, records, and the formats of old clients.

No I/O.
"""

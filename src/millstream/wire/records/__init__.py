"""Record batches: layout, checksum, compression, the records inside, and the formats of old clients. Pure."""

"""SQL over topics: a catalog of streams, tables and flows, and the engine that runs statements."""

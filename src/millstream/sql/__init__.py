"""SQL over topics: a catalog of streams, tables and flows, and what runs statements about them."""

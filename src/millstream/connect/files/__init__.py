"""Files as a stream of rows: CSV, JSON lines, Parquet."""

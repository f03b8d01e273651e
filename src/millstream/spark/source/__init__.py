"""The source: planning on the driver, fetching and decoding to Arrow on executors."""

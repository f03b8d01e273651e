"""Bytes to messages and back: the schema compiler, frames, record batches. Pure."""

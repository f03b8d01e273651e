"""Damage: checksums of small files, verification of batches, the background scrub, and `millstream log verify`."""

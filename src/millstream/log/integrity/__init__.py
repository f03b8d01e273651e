"""Damage: checksums of small files, verification of batches, the scrub, `millstream log verify`."""

"""Authorized operations in responses: without ACLs, all of them.

Bit n stands for the operation with the number n in Kafka's AclOperation.
"""

from __future__ import annotations

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# Not requested, or the resource does not exist.
NOT_REQUESTED = -(2**31)
TOPIC_OPERATIONS = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)

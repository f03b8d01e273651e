"""Applies changes of settings, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.broker.configs.changes import (
    BROKER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    LOGGER,
    SET,
    TOPIC,
    Change,
    broker_overrides,
    check_changes,
    client_metrics_overrides,
    group_overrides,
    topic_overrides,
)
from millstream.broker.configs.entries import logger_names
from millstream.control.image import ClusterImage
from millstream.control.znodes import DEFAULT_BROKER
from millstream.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices

# Maximum number of settings of one resource in a request: more than exist, and about as many as a
# node of the metadata store can hold.
MAX_CHANGES = 10_000

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}


async def alter(
    services: ConfigServices,
    kind: int,
    name: str,
    changes: Sequence[Change],
    *,
    replace: bool,
    validate_only: bool,
) -> None:
    """Apply the changes to one resource, all or none; raise ApiError if they are not allowed."""
    if kind == TOPIC:

        def plan(image: ClusterImage) -> Mapping[str, str]:
            return topic_overrides(image, services.config, name, changes, replace=replace)

        plan(services.image)
        if not validate_only:
            await services.local_controller.set_topic_config(name, plan)
    elif kind == BROKER:

        def broker_plan(image: ClusterImage) -> Mapping[str, str]:
            return broker_overrides(
                image, services.config, services.node_id, name, changes, replace=replace
            )

        broker_plan(services.image)
        if not validate_only:
            await services.local_controller.set_broker_config(name or DEFAULT_BROKER, broker_plan)
    elif kind == GROUP:

        def group_plan(image: ClusterImage) -> Mapping[str, str]:
            return group_overrides(image, services.config, name, changes, replace=replace)

        group_plan(services.image)
        if not validate_only:
            await services.local_controller.set_group_config(name, group_plan)
    elif kind == CLIENT_METRICS:

        def metrics_plan(image: ClusterImage) -> Mapping[str, str]:
            return client_metrics_overrides(image, name, changes, replace=replace)

        metrics_plan(services.image)
        if not validate_only:
            await services.local_controller.set_client_metrics_config(name, metrics_plan)
    elif kind == LOGGER:
        _alter_loggers(services, name, changes, validate_only)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _alter_loggers(
    services: ConfigServices, name: str, changes: Sequence[Change], validate_only: bool
) -> None:
    if name != str(services.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {services.node_id}, but received {name}",
        )
    check_changes(changes)
    known = set(logger_names())
    for operation, logger, level in changes:
        if operation not in (SET, DELETE):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "Only SET and DELETE are allowed for the BROKER_LOGGER resource",
            )
        if logger not in known:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
        if operation == SET and (level or "").upper() not in _LEVELS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{level} is not a log level; use one of {', '.join(_LEVELS)}",
            )
    if not validate_only:
        for operation, logger, level in changes:
            value = logging.NOTSET if operation == DELETE else _LEVELS[(level or "").upper()]
            logging.getLogger(logger).setLevel(value)

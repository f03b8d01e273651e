"""The effect of a change at run time (AlterConfigs), and what it may not set, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millstream.control.image import ClusterImage
from millstream.control.topics import name_problem
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import (
    BrokerConfig,
    Source,
    check_group_overrides,
    parse_topic_overrides,
    stored_topic_overrides,
    topic_layers,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.group_settings import (
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    METRICS_INTERVAL_BOUNDS,
    METRICS_MATCHES,
)
from millstream.core.kafka_settings import refusal
from millstream.core.regex import compiled
from millstream.core.settings import Setting, SettingError, Type, Update, Value
from millstream.core.topic_settings import TOPIC_SETTINGS

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_OPERATIONS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

# (operation, name, value)
Change = tuple[int, str, str | None]


def check_changes(changes: Sequence[Change]) -> None:
    """Raise ApiError if a list of changes is invalid for any resource."""
    names = [name for _, name, _ in changes]
    if len(set(names)) < len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [name for operation, name, value in changes if value is None and operation != DELETE]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )
    if any(operation not in (SET, DELETE, APPEND, SUBTRACT) for operation, _, _ in changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown operation on a setting")


def topic_overrides(
    image: ClusterImage,
    broker: BrokerConfig,
    topic: str,
    changes: Sequence[Change],
    *,
    replace: bool,
) -> dict[str, str]:
    """Return the overrides of a topic after the changes."""
    if not topic:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = name_problem(topic)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
    if topic not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
    check_changes(changes)
    current = {} if replace else dict(image.topic_configs.get(topic, {}))
    overrides = stored_topic_overrides(current).values

    def effective(name: str) -> str:
        return TOPIC_SETTINGS[name].text(topic_layers(broker, overrides, name)[0].value) or ""

    changed = _changed(current, changes, TOPIC_SETTINGS, effective)
    try:
        # Stored names may be those of a later version.
        parse_topic_overrides(
            {n: text for n, text in changed.items() if n in TOPIC_SETTINGS or n not in current}
        )
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return changed


def broker_overrides(
    image: ClusterImage,
    broker: BrokerConfig,
    node_id: int,
    name: str,
    changes: Sequence[Change],
    *,
    replace: bool,
) -> dict[str, str]:
    """Return the dynamic settings of a broker, or of all (empty name), after the changes."""
    if name:
        _check_broker_name(name, node_id, image)
    check_changes(changes)
    current = {} if replace else dict(image.broker_configs.get(name or "<default>", {}))

    def effective(key: str) -> str:
        return BROKER_SETTINGS[key].text(broker.get(key)) or ""

    changed = _changed(current, changes, BROKER_SETTINGS, effective)
    fixed = [key for key in changed if key not in current and _is_fixed(key)]
    if fixed:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{', '.join(fixed)}]",
        )
    for key, text in changed.items():
        reason = refusal(key, text) if key not in current else None
        if reason is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{key} is refused: {reason}")
    try:
        # Kafka stores unknown settings: they may belong to a plugin, or to a later version.
        values = {
            key: BROKER_SETTINGS[key].parse(text)
            for key, text in changed.items()
            if key in BROKER_SETTINGS
        }
        _check_connection_limits(broker, values, Source.BROKER if name else Source.CLUSTER)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
    return changed


def _check_connection_limits(
    broker: BrokerConfig, values: Mapping[str, Value], altered: Source
) -> None:
    """Reject limits that would lock out every client, including one that could lift them.

    ``values`` are those of the ``altered`` layer after the change. The other layers do not change.
    """
    if values.get("max.connections") == 0:
        raise SettingError("Invalid max.connections 0", "max.connections")
    per_ip, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    others = [layer.value for layer in broker.layers(overrides) if layer.source is not altered]
    if values.get(per_ip) == 0 and not values.get(overrides, others[0]):
        raise SettingError(
            f"{per_ip} can be set to zero only if {overrides} property is set.", per_ip
        )


def group_overrides(
    image: ClusterImage,
    broker: BrokerConfig,
    group: str,
    changes: Sequence[Change],
    *,
    replace: bool,
) -> dict[str, str]:
    """Return the settings of a group, which need not exist, after the changes."""
    if not group:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    check_changes(changes)
    current = {} if replace else image.group_configs.get(group, {})
    changed = _changed(current, changes, GROUP_SETTINGS, lambda name: "")
    try:
        check_group_overrides(broker, changed)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return changed


def client_metrics_overrides(
    image: ClusterImage, subscription: str, changes: Sequence[Change], *, replace: bool
) -> dict[str, str]:
    """Return a subscription to client metrics (KIP-714) after the changes.

    It is stored and shown, but there is no metrics receiver, so no client pushes any.
    """
    if not subscription:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    check_changes(changes)
    current = {} if replace else image.client_metrics_configs.get(subscription, {})
    # Kafka does not support appending to its lists either.
    changed = _changed(current, changes, {}, lambda name: "")
    for name, text in changed.items():
        _check_client_metrics(name, text)
    return changed


def _check_client_metrics(name: str, text: str) -> None:
    row = CLIENT_METRICS_SETTINGS.get(name)
    if row is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    try:
        value = row.parse(text)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    low, high = METRICS_INTERVAL_BOUNDS
    if isinstance(value, int) and not low <= value <= high:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {value} for {name}, interval must be between {low} and {high} (1 hour)",
        )
    if name == "match" and isinstance(value, tuple):
        for pattern in value:
            _check_match(pattern)


def _check_match(pattern: str) -> None:
    """Raise unless a pattern is ``name=expression``, as in client_id=orders-.*"""
    name, _, expression = pattern.partition("=")
    try:
        compiled(expression.strip())
        is_valid = name.strip() in METRICS_MATCHES and bool(expression) and "=" not in expression
    except ApiError:
        is_valid = False
    if not is_valid:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def _check_broker_name(name: str, node_id: int, image: ClusterImage) -> None:
    """Raise unless the name is the id of a broker of the cluster.

    The controller handles the request, whichever broker received it. Brokers that are down are
    valid: one could return with a throttle that is no longer wanted. So is a broker whose last
    setting is gone, because a request whose response was lost comes again.
    """
    try:
        is_known = (
            int(name) == node_id or int(name) in image.brokers or name in image.broker_configs
        )
        if not is_known and int(name) not in image.known_brokers():
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {name}",
            )
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        ) from None


def _is_fixed(name: str) -> bool:
    """Return whether a setting is known and can only be given at startup."""
    row = BROKER_SETTINGS.get(name)
    return row is not None and row.update is not Update.CLUSTER_WIDE


def _changed(
    current: dict[str, str],
    changes: Sequence[Change],
    rows: Mapping[str, Setting],
    effective: Callable[[str], str],
) -> dict[str, str]:
    changed = dict(current)
    for operation, name, value in changes:
        if operation == DELETE:
            changed.pop(name, None)
        elif operation == SET:
            changed[name] = value or ""
        else:
            row = rows.get(name)
            if row is None or row.type is not Type.LIST:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {_OPERATIONS[operation]} to key {name} because its type is not LIST.",
                )
            changed[name] = _edit_list(changed.get(name) or effective(name), value or "", operation)
    return changed


def _edit_list(current: str, value: str, operation: int) -> str:
    items = [item for item in current.split(",") if item]
    edited = [item.strip() for item in value.split(",") if item.strip()]
    if operation == APPEND:
        return ",".join(items + [item for item in edited if item not in items])
    return ",".join(item for item in items if item not in edited)

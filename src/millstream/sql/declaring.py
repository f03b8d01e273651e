"""Turn CREATE STREAM and CREATE TABLE into a catalog entry.

Columns are declared, come from the format, or are guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from millstream.client.admin.client import Admin
from millstream.client.errors import TopicExists, unknown_topic
from millstream.pipelines.errors import nearest
from millstream.pipelines.formats.codec import READ_BY_COLUMNS
from millstream.pipelines.formats.registry import option_names, struct_type, value_format
from millstream.sql.catalog import Column, Source
from millstream.sql.declared import format_options, schema_of, topic_config, topic_target
from millstream.sql.errors import SqlError, from_spark
from millstream.sql.guess import Guess, guess, sample
from millstream.sql.output_columns import columns_of
from millstream.sql.statements import Create

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
Confirm = Callable[[Source, Guess], None]
"""Asks the user whether guessed columns are right; raises SqlError if not."""


def check_name(name: str) -> None:
    """Check a name. SQL names are letters, digits and underscores; topics may have other names."""
    if not _NAME.match(name):
        raise SqlError(
            f"{name!r} cannot be a name",
            hint=f"use letters, digits and underscores: {plain_name(name)} WITH (topic = '{name}')",
        )


def plain_name(topic: str) -> str:
    """Return a SQL name for a topic."""
    return re.sub(r"\W+", "_", topic).strip("_") or "name"


def reject_guess(source: Source, guess: Guess) -> None:
    """Reject guessed columns, because there is no user to ask."""
    raise SqlError(
        f"the columns of topic {source.topic} are guessed from {guess.values} values and not confirmed",
        hint="correct the statement below and run it, or pass --yes",
        text=source.statement(),
    )


def declared_columns(statement: Create, bootstrap: str) -> tuple[Source, Guess | None]:
    """Return the entry, and the guess if its columns were not declared. Needs a Spark session."""
    options = {"topic": statement.name} | dict(statement.options)
    undeclared = Source(statement.kind, statement.name, (), options)
    # Reject an unknown format first.
    option_names(undeclared.value)
    if statement.columns is not None:
        with_value = options | {"value": undeclared.value}
        columns = _parsed(statement.columns, undeclared.value)
        source = Source(statement.kind, statement.name, columns, _in_order(with_value))
        _reject_extra_columns(source)
    elif "schema" in options or options.get("value", "json") not in READ_BY_COLUMNS:
        format = value_format(undeclared.value, schema_of(undeclared), **format_options(undeclared))
        with_value = options | {"value": undeclared.value}
        source = Source(
            statement.kind, statement.name, columns_of(format.schema), _in_order(with_value)
        )
    else:
        return _guessed(undeclared, bootstrap)
    _check_key(source)
    return source, None


def _parsed(columns: str, format: str) -> tuple[Column, ...]:
    """Parse columns as Spark does. Errors have their position."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    try:
        parsed = DataType.fromDDL(columns)
    except PySparkException as error:
        raise from_spark(error, columns) from None
    return columns_of(struct_type(parsed, format=format))


def _reject_extra_columns(source: Source) -> None:
    if source.value not in READ_BY_COLUMNS:
        raise SqlError(
            f"values of format {source.value} define their columns themselves",
            hint="remove the columns",
        )
    if "schema" in source.options:
        raise SqlError("both columns and a schema are declared", hint="remove one of them")


def _guessed(undeclared: Source, bootstrap: str) -> tuple[Source, Guess]:
    with Admin(bootstrap) as admin:
        names = admin.topics.names()
        if undeclared.topic not in names:
            raise unknown_topic(undeclared.topic, names)
    guessed = guess(sample(bootstrap, undeclared.topic))
    if guessed is None:
        raise SqlError(
            f"topic {undeclared.topic} is empty: there is nothing to guess columns from",
            hint=f"declare them: CREATE {undeclared.kind.upper()} {undeclared.name} (id STRING, ...)",
        )
    format = undeclared.options.get("value")
    if format is not None and format != guessed.value:
        raise SqlError(
            f"the values of topic {undeclared.topic} look like {guessed.value}, not {format}",
            hint="declare the columns, or remove the value format",
        )
    options = _in_order(dict(undeclared.options) | {"value": guessed.value})
    columns = guessed.columns
    if guessed.value not in READ_BY_COLUMNS:
        columns = columns_of(value_format(guessed.value).schema)
    source = Source(undeclared.kind, undeclared.name, columns, options)
    _check_key(source)
    return source, guessed


def _in_order(options: dict[str, str]) -> dict[str, str]:
    """Return the options in reading order: topic, value, and the rest."""
    first = {name: options[name] for name in ("topic", "value") if name in options}
    return first | options


def _check_key(source: Source) -> None:
    known = [column.name for column in source.columns]
    for name in source.key:
        if name not in known:
            raise SqlError(f"the key {name!r} is not a column", hint=nearest(name, known))


def create_topic(source: Source, bootstrap: str) -> bool:
    """Create the topic if it is missing and ``partitions`` is set.

    Return whether it was created.
    """
    with Admin(bootstrap) as admin:
        names = admin.topics.names()
        if source.topic in names:
            return False
        if "partitions" not in source.options:
            close = unknown_topic(source.topic, names)
            hint = close.hint if close.hint.startswith("did you mean") else ""
            raise SqlError(
                f"topic {source.topic!r} does not exist",
                hint=hint or "add partitions = N to the options to create it",
            )
        target = topic_target(source) if source.key else None
        try:
            admin.topics.create(
                source.topic,
                partitions=target.partitions if target else int(source.options["partitions"]),
                replication_factor=target.replication_factor if target else None,
                configs=topic_config(source),
            )
        except TopicExists:
            return False
    return True

"""From CREATE STREAM and CREATE TABLE to an entry of the catalog: columns as declared, as the format says, or guessed."""

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
"""Asks whether guessed columns are right; SqlError if not."""


def check_name(name: str) -> None:
    """Names of SQL are letters, digits and underscores; topics may have any."""
    if not _NAME.match(name):
        raise SqlError(
            f"{name!r} cannot be a name",
            hint=f"use letters, digits and underscores: {plain_name(name)} WITH (topic = '{name}')",
        )


def plain_name(topic: str) -> str:
    """A name for what is in a topic."""
    return re.sub(r"\W+", "_", topic).strip("_") or "name"


def refuse_all(source: Source, found: Guess) -> None:
    """Nobody is there to ask."""
    raise SqlError(
        f"the columns of topic {source.topic} are guessed from {found.values} values, and nobody has confirmed them",
        hint="run the statement below, changed where it is wrong; or give --yes",
        text=source.statement(),
    )


def declared_columns(statement: Create, bootstrap: str) -> tuple[Source, Guess | None]:
    """The entry, and what its columns were guessed from where nobody gave them. A Spark session is there."""
    options = {"topic": statement.name} | dict(statement.options)
    given = Source(statement.kind, statement.name, (), options)
    option_names(given.value)  # a format that there is not is told first
    if statement.columns is not None:
        with_value = options | {"value": given.value}
        columns = _parsed(statement.columns, given.value)
        made = Source(statement.kind, statement.name, columns, _in_order(with_value))
        _refuse_columns_of(made)
    elif "schema" in options or options.get("value", "json") not in READ_BY_COLUMNS:
        format = value_format(given.value, schema_of(given), **format_options(given))
        with_value = options | {"value": given.value}
        made = Source(statement.kind, statement.name, columns_of(format.schema), _in_order(with_value))
    else:
        return _guessed(given, bootstrap)
    _check_key(made)
    return made, None


def _parsed(columns: str, format: str) -> tuple[Column, ...]:
    """Columns as Spark reads them, and where it cannot."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    try:
        found = DataType.fromDDL(columns)
    except PySparkException as error:
        raise from_spark(error, columns) from None
    return columns_of(struct_type(found, format=format))


def _refuse_columns_of(source: Source) -> None:
    if source.value not in READ_BY_COLUMNS:
        raise SqlError(
            f"values of format {source.value} say themselves what they hold", hint="leave out the columns"
        )
    if "schema" in source.options:
        raise SqlError("columns and a schema are both given", hint="leave out one of them")


def _guessed(given: Source, bootstrap: str) -> tuple[Source, Guess]:
    with Admin(bootstrap) as admin:
        names = admin.topics.names()
        if given.topic not in names:
            raise unknown_topic(given.topic, names)
    found = guess(sample(bootstrap, given.topic))
    if found is None:
        raise SqlError(
            f"topic {given.topic} is empty: there is nothing to guess columns from",
            hint=f"give them: CREATE {given.kind.upper()} {given.name} (id STRING, ...)",
        )
    asked = given.options.get("value")
    if asked is not None and asked != found.value:
        raise SqlError(
            f"the values of topic {given.topic} look like {found.value}, not {asked}",
            hint="give the columns, or leave out the value format",
        )
    options = _in_order(dict(given.options) | {"value": found.value})
    columns = found.columns
    if found.value not in READ_BY_COLUMNS:
        columns = columns_of(value_format(found.value).schema)
    made = Source(given.kind, given.name, columns, options)
    _check_key(made)
    return made, found


def _in_order(options: dict[str, str]) -> dict[str, str]:
    """As one reads it: where, what, and the rest."""
    first = {name: options[name] for name in ("topic", "value") if name in options}
    return first | options


def _check_key(source: Source) -> None:
    known = [one.name for one in source.columns]
    for name in source.key:
        if name not in known:
            raise SqlError(f"the key {name!r} is no column", hint=nearest(name, known))


def make_topic(source: Source, bootstrap: str) -> bool:
    """Make the topic where it is missing and ``partitions`` says how wide it is to be; whether it was made."""
    with Admin(bootstrap) as admin:
        names = admin.topics.names()
        if source.topic in names:
            return False
        if "partitions" not in source.options:
            close = unknown_topic(source.topic, names)
            hint = close.hint if close.hint.startswith("did you mean") else ""
            raise SqlError(
                f"topic {source.topic!r} does not exist",
                hint=hint or "add partitions = N to the options to make it",
            )
        wanted = topic_target(source) if source.key else None
        try:
            admin.topics.create(
                source.topic,
                partitions=wanted.partitions if wanted else int(source.options["partitions"]),
                replication_factor=wanted.replication_factor if wanted else None,
                configs=topic_config(source),
            )
        except TopicExists:
            return False
    return True

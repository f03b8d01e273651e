"""JSON: a value is one object, read and written by Spark's functions.

Rejected, with the reason in ``_error``:

- values that are not JSON or not UTF-8, and data after the object;
- values of another type than their field, and NOT NULL fields that are missing or null;
- numbers and times out of range, decimals with more digits than declared, nanoseconds, incomplete
  dates, and halves of surrogate pairs.

Accepted: unknown fields (ignored), missing fields that may be null, any JSON for a ``string`` field
(as its text), numbers for a ``timestamp`` (seconds since 1970), and decimals written as text.
"""

from __future__ import annotations

import secrets
import string
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from millstream.pipelines.formats.json_checks import (
    Check,
    as_declared,
    check_keys,
    checks,
    does_not_fit,
    nullable,
    reading_type,
)
from millstream.pipelines.formats.json_reasons import explain
from millstream.pipelines.formats.json_texts import (
    decimal_texts,
    exact_fields,
    exact_strings,
    has_floats,
    has_no_half_pairs,
    has_no_special_numbers,
    is_doubtful,
    strings_type,
    texts_type,
    with_marked_numbers,
)
from millstream.pipelines.formats.registry import (
    ERROR,
    RECORD,
    WRITTEN_TIMES,
    Explain,
    Key,
    Tombstones,
    ValueFormat,
    key_column,
    once,
    options_text,
    record_struct,
    sent_headers,
    struct_type,
    value_fields,
    with_tombstones,
    without_dropped,
)
from millstream.spark.source.arrow_json import PROVEN, plan_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

NOT_UTF8 = "the value is not valid UTF-8"
MALFORMED = "the value is not one JSON object with fields of the declared types"
HALF_PAIR = "a text has half of a surrogate pair"
CHANGED_NUMBER = "a number in a text field would be changed"
# Spark stops at the end of the first object, whatever follows. So the value is read as the first
# element of an array, followed by an object with a secret field. The value is complete if that
# object is the second element. With a known field name, a value could close the array and open
# another one, and would pass as something else.
SECRET = "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))
PARSED, CORRUPT, WHOLE, MARK = "_parsed", "_corrupt", f"_millstream_{SECRET}", f"_mark_{SECRET}"
TEXTS, STRINGS = "_texts", "_exact_strings"
BEFORE, AFTER, ELEMENTS = '{"' + WHOLE + '":[', ',{"' + MARK + '":true}]}', 2
# Java takes minutes (1e10000000) or hours to write out decimals with such an exponent, before it
# finds that they do not fit.
LONG_EXPONENT = "[0-9.][eE][+-]?0*[1-9][0-9]{3}"
STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


class JsonFormat(ValueFormat):
    """The JSON format.

    ``timestampFormat``, ``timestampNTZFormat``, ``dateFormat`` and ``timeZone`` are Spark's options
    for reading and writing. ``ignoreNullFields=False`` writes nulls.
    """

    name = "json"
    OPTIONS: ClassVar[tuple[str, ...]] = (
        "timestampFormat",
        "timestampNTZFormat",
        "dateFormat",
        "timeZone",
        "locale",
        "ignoreNullFields",
    )

    def __init__(self, schema: Any = None, **options: Any) -> None:
        self._schema = None if schema is None else struct_type(schema, format=self.name)
        self._options = options_text(options)

    @property
    def schema(self) -> StructType:  # type: ignore[override]
        """The schema to read. Writing needs none, because the rows have one."""
        return self._schema or struct_type(None, format=self.name)

    def decode(self, records: DataFrame, *, tombstones: Tombstones = "error") -> DataFrame:
        check_keys(self.schema)
        text = F.col("value").cast("string")
        whole = F.concat(F.lit(BEFORE), text, F.lit(AFTER))
        read = F.from_json(whole, self._wrapped(), self._parser_options())
        if (decimals := decimal_texts(self.schema)) is not None:
            read = F.when(~self._has_long_exponent(text, whole, decimals), read)
        # Values that the source has parsed are not parsed again.
        proven = (
            F.col(PROVEN) if PROVEN in records.columns else F.lit(None).cast(nullable(self.schema))
        )
        read = F.when(proven.isNull(), read)
        utf8 = F.when(proven.isNull(), F.is_valid_utf8(text)).otherwise(F.lit(True))
        parsed = records.select(
            record_struct(records),
            once(read).alias(PARSED),
            utf8.alias("_utf8"),
            proven.alias(PROVEN),
        ).select(RECORD, "_utf8", f"{PARSED}.{WHOLE}", f"{PARSED}.{CORRUPT}", PROVEN)
        parsed = parsed.select("*", *self._recheck_columns())
        columns = [self._column(field) for field in self.schema.fields]
        error = F.when(F.col(PROVEN).isNull(), with_tombstones(self._error(), tombstones))
        return without_dropped(
            parsed.select(*columns, once(error).alias(ERROR), RECORD), tombstones
        )

    def proven_column(self) -> StructField | None:
        """Return the column that the source can parse, or None if it would parse differently."""
        if self._read_options() or plan_for(self.schema) is None:
            return None
        return StructField(PROVEN, self.schema)

    def _column(self, field: StructField) -> Column:
        slow = as_declared(_field(field.name), field.dataType)
        quick = F.col(PROVEN).getField(field.name)
        return F.when(F.col(PROVEN).isNotNull(), quick).otherwise(slow).alias(field.name)

    def encode(self, rows: DataFrame, *, key: Key = None) -> DataFrame:
        options = WRITTEN_TIMES | self._options
        value = F.to_json(value_fields(rows), options)
        pack = partial(F.to_json, options=options)
        return rows.select(
            key_column(rows, key, pack), value.cast("binary").alias("value"), *sent_headers(rows)
        )

    def explainer(self) -> Explain:
        return partial(explain, schema=self.schema)

    def _wrapped(self) -> StructType:
        fields = reading_type(self.schema)
        assert isinstance(fields, StructType)
        element = StructType([*fields.fields, StructField(MARK, BooleanType())])
        return StructType(
            [StructField(WHOLE, ArrayType(element)), StructField(CORRUPT, StringType())]
        )

    def _has_long_exponent(self, text: Column, whole: Column, decimals: DataType) -> Column:
        """Return whether a number, or a decimal that is written as text, has a long exponent.

        Other texts may match, too. The few values that match are checked again, without their texts
        and with nothing but the decimals.
        """
        numbers = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*"', '""')
        read = F.from_json(whole, StructType([StructField(WHOLE, ArrayType(decimals))]), STRICT)
        has_long = numbers.rlike(LONG_EXPONENT) | F.to_json(read).rlike(LONG_EXPONENT)
        return F.when(text.rlike(LONG_EXPONENT), F.coalesce(has_long, F.lit(False))).otherwise(
            F.lit(False)
        )

    def _read_options(self) -> dict[str, str]:
        return {name: value for name, value in self._options.items() if name != "ignoreNullFields"}

    def _parser_options(self) -> dict[str, str]:
        special = {"allowNonNumericNumbers": "true"} if has_floats(self.schema) else {}
        return STRICT | special | self._read_options()

    def _error(self) -> Column:
        value, last = (F.get(F.col(WHOLE), F.lit(index)) for index in range(ELEMENTS))
        whole = F.col(CORRUPT).isNull() & (F.size(WHOLE) == ELEMENTS) & value.isNotNull()
        whole &= last.getField(MARK).isNotNull()
        error = F.when(~F.col("_utf8"), NOT_UTF8).when(~F.coalesce(whole, F.lit(False)), MALFORMED)
        for check in checks(_field, self.schema):
            error = error.when(~check.fine, check.reason)
        for check in self._text_checks():
            error = error.when(~check.fine, check.reason)
        return error

    def _recheck_columns(self) -> list[Column]:
        """Return the texts of a doubtful value, and whether its strings are exact."""
        text = F.col(f"{RECORD}.value").cast("string")
        doubtful = is_doubtful(text, _field, self.schema)
        if doubtful is None:
            return []
        looked = F.col(PROVEN).isNull() & F.coalesce(doubtful, F.lit(False))
        kind, strings = texts_type(self.schema), exact_strings(text, self.schema, self._parsed)
        columns = {} if kind is None else {TEXTS: self._parsed(with_marked_numbers(text), kind)}
        columns |= {} if strings is None else {STRINGS: strings}
        return [once(F.when(looked, column)).alias(name) for name, column in columns.items()]

    def _text_checks(self) -> Iterator[Check]:
        text = F.col(f"{RECORD}.value").cast("string")
        if has_floats(self.schema):
            yield Check(has_no_special_numbers(text), MALFORMED)
        yield Check(has_no_half_pairs(text, self.schema, self._parsed), HALF_PAIR)
        for name, exact in exact_fields(F.col(TEXTS), self.schema, self._read_options()).items():
            yield Check(F.coalesce(exact, F.lit(True)), does_not_fit(self.schema[name]))
        if strings_type(self.schema) is not None:
            yield Check(F.coalesce(F.col(STRINGS), F.lit(True)), CHANGED_NUMBER)

    def _parsed(self, text: Column, kind: DataType) -> Column:
        whole = F.concat(F.lit(BEFORE), text, F.lit(AFTER))
        read = F.from_json(
            whole, StructType([StructField(WHOLE, ArrayType(kind))]), self._parser_options()
        )
        return F.get(read.getField(WHOLE), F.lit(0))


def _field(name: str) -> Column:
    return F.get(F.col(WHOLE), F.lit(0)).getField(name)

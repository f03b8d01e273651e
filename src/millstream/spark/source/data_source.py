"""The ``millstream`` format of Spark: its columns, readers and writers."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millstream.client.errors import ClientError
from millstream.spark.sink.stream_writes import refusal

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key: string, value: binary>>"


class MillstreamSource(DataSource):
    """The data source; ``pyspark_millstream`` registers it.

    Columns and options are those of Spark's Kafka connector.
    """

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> str:
        with_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return f"{COLUMNS}, {HEADERS}" if with_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        from millstream.spark.source.batch_reader import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from millstream.spark.source.stream_reader import RefusedReader, StreamReader

        try:
            return StreamReader(self.options, schema)
        except ClientError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.spark.sink.batch_writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Reject the write.

        Spark creates this writer for every batch, without the query and its offsets.
        """
        raise refusal()

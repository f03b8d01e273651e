"""The pipeline of ``millstream demo``: a join of orders and payments, revenue, and an archive.

Revenue is summed by minute and country, and the archive is in Parquet. It is an ordinary pipeline
file for ``millstream pipeline check`` and ``run``. The environment sets the archive directory.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.pipelines import Pipeline, parquet, topic

ARCHIVE = os.environ.get("MILLSTREAM_DEMO_ARCHIVE", "demo-lake/paid-orders")

pipe = Pipeline("demo")
pipe.stream(
    "orders",
    value="json",
    schema="id string not null, customer string not null, amount decimal(12,2) not null, at timestamp not null",
    watermark="at 2 minutes",
)
pipe.stream(
    "payments",
    value="json",
    schema="order_id string not null, paid_at timestamp not null",
    watermark="paid_at 2 minutes",
)
pipe.table("customers", value="json", schema="customer string, country string")


@pipe.flow(to=topic("paid-orders", key="id", partitions=2, watermark="at 3 minutes"))
def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 1 MINUTE")
    return orders.join(payments, in_time).select("id", "customer", "amount", "at", "paid_at")


@pipe.flow(to=topic("revenue-by-minute", key="country", partitions=2), mode="update")
def revenue_by_minute(paid_orders: DataFrame, customers: DataFrame) -> DataFrame:
    minute = F.window("at", "1 minute").start.alias("minute")
    return (
        paid_orders.join(customers, "customer")
        .groupBy(minute, "country")
        .agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    )


@pipe.flow(to=parquet(ARCHIVE, by="day"))
def archive(paid_orders: DataFrame) -> DataFrame:
    return paid_orders.withColumn("day", F.to_date("at"))

"""Orders and payments, joined while both are fresh, and what they bring by country and minute.

millstream pipeline check examples/revenue.py
millstream pipeline run examples/revenue.py
"""

from pyspark.sql import functions as F

from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("revenue", bootstrap="localhost:9092")
pipe.stream(
    "orders",
    value="json",
    schema="id string, customer string, amount decimal(12,2), at timestamp",
    watermark="at 1 minute",
)
pipe.stream(
    "payments", value="json", schema="order_id string, paid_at timestamp", watermark="paid_at 1 minute"
)
pipe.table("customers", value="json", schema="customer string, country string")  # the latest row of each key


# An order may be paid ten minutes later: whoever reads the joined rows has to wait that long for `at`.
@pipe.flow(to=topic("paid-orders", key="id", watermark="at 11 minutes"))
def paid_orders(orders, payments):
    in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 10 MINUTES")
    return orders.join(payments, in_time)


@pipe.flow(to=topic("revenue-by-minute", key="country"), mode="update")
def revenue_by_minute(paid_orders, customers):
    return (
        paid_orders.join(customers, "customer")
        .groupBy(F.window("at", "1 minute").alias("minute"), "country")
        .agg(F.sum("amount").alias("revenue"))
    )


@pipe.flow(to=parquet("lake/paid-orders", by="day"))
def archive(paid_orders):
    return paid_orders.withColumn("day", F.to_date("at"))


pipe.sql("big_orders", "SELECT * FROM orders WHERE amount > 10000", to=topic("big-orders", key="id"))

"""Page views: clicks that were sent twice count once, visits end after half an hour, a sliding window shows what is hot.

millstream pipeline run examples/sessions.py
"""

from pyspark.sql import functions as F

from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("sessions", bootstrap="localhost:9092")
pipe.stream(
    "page-views",
    value="json",
    schema="event_id string NOT NULL, visitor string NOT NULL, page string, at timestamp NOT NULL",
    watermark="at 10 minutes",
)


@pipe.view
def views(page_views):
    """A view is shared by the flows that name it; each event once, however often the browser sent it."""
    return page_views.dropDuplicatesWithinWatermark(["event_id"])


@pipe.flow(to=[parquet("lake/visits", by="day"), topic("visits", key="visitor", partitions=4)])
def visits(views):
    visit = F.session_window("at", "30 minutes")
    return (
        views.groupBy(visit.alias("visit"), "visitor")
        .agg(F.count("*").alias("pages"), F.first("page").alias("entered_at"))
        .withColumn("day", F.to_date("visit.start"))
    )


@pipe.flow(to=topic("hot-pages", key="page", config={"cleanup.policy": "compact"}), mode="update")
def hot_pages(views):
    return views.groupBy(F.window("at", "10 minutes", "1 minute").alias("period"), "page").count()

"""Connectors, with databases and one Spark session for all; see ``support/connect/fixtures.py``."""

from support.connect.fixtures import postgres_server, shop
from support.spark.fixtures import spark

__all__ = ["postgres_server", "shop", "spark"]

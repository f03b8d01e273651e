"""``millstream plan``: estimate disk and brokers for a load, and show the calculation."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from millstream.cli.plan.capacity import Disk, Network
from millstream.cli.support import declare
from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import print_json

app = declare.Application()

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+)\s*([KMGTP]?)(?:B|bps|bit/s|b/s)?", re.I)
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*(d|w|h)?", re.I)
_DAYS = {"h": Fraction(1, 24), "d": Fraction(1), "w": Fraction(7)}


def amount(text: str) -> Fraction:
    """Parse 100M, 1KB or 1Gbps; units are decimal."""
    match = _AMOUNT.fullmatch(str(text).strip())
    if match is None:
        raise declare.BadParameter(f"{text!r} is not an amount such as 100M, 1KB, 1TB or 1Gbps")
    return Fraction(match[1]) * _UNITS[match[2].upper()]


def days(text: str) -> Fraction:
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise declare.BadParameter(f"{text!r} is not a duration such as 14d, 2w or 36h")
    return Fraction(match[1]) * _DAYS[(match[2] or "d").lower()]


def share(text: str) -> Fraction:
    """Parse a share from 0 to 1: 0.75, 75% or 2/3."""
    value = str(text).strip()
    try:
        if value.endswith("%"):
            fraction = Fraction(value[:-1]) / 100
        else:
            above, _, below = value.partition("/")
            fraction = Fraction(above) / Fraction(below or 1)
    except (ValueError, ZeroDivisionError):
        raise declare.BadParameter(f"{text!r} is not a share such as 0.75, 75% or 2/3") from None
    if not 0 <= fraction <= 1:
        raise declare.BadParameter(f"{text!r} is not between 0 and 1")
    return fraction


def _option(name: str, help: str, parser: Any, metavar: str) -> Any:
    return declare.Option(name, help=help, parser=parser, metavar=metavar)


@app.command()
def plan(
    messages: Annotated[
        Fraction, _option("--messages-per-day", "Records per day.", amount, "COUNT")
    ] = "100M",  # type: ignore[assignment]
    size: Annotated[
        Fraction, _option("--message-size", "Average record size.", amount, "BYTES")
    ] = "1KB",  # type: ignore[assignment]
    replicas: Annotated[
        int, declare.Option("--replicas", min=1, help="Stored copies of each record.")
    ] = 2,
    retention: Annotated[
        Fraction, _option("--retention", "How long records are kept.", days, "DAYS")
    ] = "14d",  # type: ignore[assignment]
    overhead: Annotated[
        Fraction, _option("--overhead", "Share added by indexes and other files.", share, "SHARE")
    ] = "10%",  # type: ignore[assignment]
    compression: Annotated[
        Fraction, _option("--compression", "Compressed size of a byte.", share, "SHARE")
    ] = "0.75",  # type: ignore[assignment]
    per_hour: Annotated[
        Fraction, _option("--bytes-per-hour", "Traffic per hour.", amount, "BYTES")
    ] = "1TB",  # type: ignore[assignment]
    nic: Annotated[
        Fraction, _option("--nic", "Network bandwidth of a broker.", amount, "BITS/S")
    ] = "1Gbps",  # type: ignore[assignment]
    usable: Annotated[
        Fraction, _option("--usable", "Share of the network that Kafka may use.", share, "SHARE")
    ] = "70%",  # type: ignore[assignment]
    reserve: Annotated[
        Fraction, _option("--reserve", "Share of that kept for peaks.", share, "SHARE")
    ] = "2/3",  # type: ignore[assignment]
    copies: Annotated[
        int,
        declare.Option(
            "--copies", min=1, help="How often the data crosses the network, including replication."
        ),
    ] = 3,
    format: OutputFormat = Format.table,
) -> None:
    """Estimate the disk size and number of brokers for a load, exact and rounded at each step."""
    if usable * (1 - reserve) <= 0:
        raise declare.BadParameter(
            "no network bandwidth is left for Kafka", param_hint="--usable, --reserve"
        )
    disk = Disk(messages, size, replicas, retention, overhead, compression)
    network = Network(per_hour, nic, usable, reserve, copies)
    print_json(_as_json(disk, network)) if format is Format.json else _print(disk, network)


def _as_json(disk: Disk, network: Network) -> dict[str, Any]:
    """Return the results rounded to whole bytes and bits."""
    return {
        "disk": {
            "bytes_per_day": round(disk.per_day),
            "bytes_per_day_with_overhead": round(disk.per_day_with_overhead),
            "bytes_kept": round(disk.kept),
            "exact_bytes": round(disk.exact),
            "rounded_bytes": round(disk.rounded),
        },
        "brokers": {
            "bits_per_s": round(network.demand),
            "bits_per_s_of_a_broker": round(network.share),
            "exact": network.exact,
            "exact_with_copies": network.exact_with_copies,
            "rounded": network.rounded,
            "rounded_with_copies": network.rounded_with_copies,
        },
    }


def _print(disk: Disk, network: Network) -> None:
    rows = [
        ("DISK", "exact", "rounded"),
        (
            f"per day: {round(disk.messages_per_day):,} x {_bytes(disk.message_bytes)} x {disk.replicas} replicas",
            _bytes(disk.per_day),
            _bytes(disk.per_day),
        ),
        (
            f"with {float(disk.overhead):.0%} for indexes",
            _bytes(disk.per_day_with_overhead),
            _bytes(disk.per_day_with_overhead),
        ),
        (
            f"kept for {float(disk.retention_days):g} days",
            _bytes(disk.kept),
            _bytes(disk.rounded_kept),
        ),
        (f"compressed to {float(disk.compression):g}", _bytes(disk.exact), _bytes(disk.rounded)),
        ("", "", ""),
        ("BROKERS", "exact", "rounded"),
        (
            f"traffic: {_bytes(network.bytes_per_hour)} per hour",
            _bits(network.demand),
            _bits(network.rounded_demand),
        ),
        (
            f"per broker: {_bits(network.nic_bits_per_s)} x {float(network.usable):g}, {float(network.reserve):.0%} of it in reserve",
            _bits(network.share),
            _bits(network.rounded_share),
        ),
        ("brokers for one copy", str(network.exact), str(network.rounded)),
        (
            f"brokers for {network.copies} copies",
            str(network.exact_with_copies),
            str(network.rounded_with_copies),
        ),
    ]
    width = max(len(row[0]) for row in rows)
    for label, exact, rounded in rows:
        print(f"{label:<{width}}  {exact:>12}  {rounded:>12}".rstrip())


def _bytes(count: Fraction) -> str:
    return _scaled(count, "B")


def _bits(count: Fraction) -> str:
    return _scaled(count, "b/s")


def _scaled(count: Fraction, unit: str) -> str:
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{round(float(count / scale), 2):g} {prefix}{unit}"
    return f"{float(count):g} {unit}"

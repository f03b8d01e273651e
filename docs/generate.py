"""Writes the reference pages that are derived from the declarations: settings, APIs, error codes. Run by ``make docs``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.errors import ErrorCode
from millstream.core.group_settings import CLIENT_METRICS_SETTINGS, GROUP_BOUNDS, GROUP_SETTINGS
from millstream.core.settings import Setting, Update
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS
from millstream.wire.apis import APIS, Api

HERE = Path(__file__).parent / "reference"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def bounds(row: Setting) -> str:
    if row.choices:
        return ", ".join(row.choices)
    low = f">= {row.low:g}" if row.low is not None else ""
    high = f"<= {row.high:g}" if row.high is not None else ""
    return " and ".join(part for part in (low, high) if part)


def default(row: Setting) -> str:
    text = row.text(row.default)
    return f"`{text}`" if text else ""


def settings_page() -> str:
    changes = {Update.READ_ONLY: "", Update.PER_BROKER: "per broker", Update.CLUSTER_WIDE: "cluster-wide"}
    served = [row for row in BROKER_SETTINGS.values() if not row.inert]
    inert = [row for row in BROKER_SETTINGS.values() if row.inert]
    topics = [row for row in TOPIC_SETTINGS.values() if not row.internal]
    return "\n".join(
        [
            "# Settings",
            "",
            "Kafka's own names. Give them in a `.properties` file (`--config`), with `--set name=value`, or, where the last "
            "column says so, while the broker runs (`millstream configs alter`).",
            "",
            "## Broker",
            "",
            table(
                ("name", "default", "bounds", "what it does", "changes while running"),
                ((f"`{r.name}`", default(r), bounds(r), r.doc, changes[r.update]) for r in served),
            ),
            "## Topic",
            "",
            table(
                ("name", "default", "bounds", "what it does", "broker setting behind it"),
                (
                    (
                        f"`{r.name}`",
                        default(r),
                        bounds(r),
                        r.doc,
                        ", ".join(f"`{s.name}`" for s in TOPIC_SYNONYMS.get(r.name, ())),
                    )
                    for r in topics
                ),
            ),
            "## Group",
            "",
            "Of single consumer groups (`IncrementalAlterConfigs` on resource type GROUP, as `kafka-configs.sh --entity-type groups` "
            "does). The broker's bounds hold.",
            "",
            table(
                ("name", "what it does", "broker setting behind it", "bounds"),
                (
                    (f"`{r.name}`", r.doc, f"`{b.default}`", f"`{b.least}` to `{b.most}`")
                    for r, b in ((row, GROUP_BOUNDS[row.name]) for row in GROUP_SETTINGS.values())
                ),
            ),
            "## Client metrics",
            "",
            "Of subscriptions to metrics of clients (KIP-714, resource type CLIENT_METRICS). They are kept and shown, but nothing here "
            "receives metrics, so no client is asked for any.",
            "",
            table(
                ("name", "default", "what it does"),
                ((f"`{r.name}`", default(r), r.doc) for r in CLIENT_METRICS_SETTINGS.values()),
            ),
            "## Accepted without effect",
            "",
            "Names of Apache Kafka that mean nothing here; the broker says so at start when one is given.",
            "",
            ", ".join(f"`{r.name}`" for r in inert) + ".",
            "",
        ]
    )


def apis_page() -> str:
    return "\n".join(
        [
            "# APIs",
            "",
            "What the broker serves, as ApiVersions tells it to clients. One file each: `wire/messages/<module>.py` declares "
            "the messages, `broker/handlers/<module>.py` answers them.",
            "",
            table(
                ("key", "name", "versions", "flexible from", "module"),
                ((str(a.key), a.name, versions_of(a), str(a.flexible_from), f"`{a.module}`") for a in APIS),
            ),
        ]
    )


def versions_of(api: Api) -> str:
    always = f"{api.min_version}-{api.newest}"
    return f"{always}; {api.max_version} with `{api.opened_by}`" if api.opened_by else always


def errors_page() -> str:
    return "\n".join(
        [
            "# Error codes",
            "",
            table(
                ("code", "name", "clients may retry", "meaning"),
                ((str(e.value), e.name, "yes" if e.retriable else "", e.message) for e in ErrorCode),
            ),
        ]
    )


PAGES = {"settings.md": settings_page, "apis.md": apis_page, "errors.md": errors_page}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Settings that were not validated before they were stored.

They were written by hand into ZooKeeper, or by a later version. No broker stops because of them,
and none deletes records if their retention is unknown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.control import znodes
from millstream.control.image import Change
from millstream.core.config import BrokerConfig, group_values, stored_topic_overrides
from millstream.core.settings import LONG_MAX
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

TOPIC = "orders"


def test_invalid_value_is_ignored_and_keeps_all_records() -> None:
    stored = stored_topic_overrides({"retention.ms": "a week", "segment.ms": "1000"})
    assert stored.values["segment.ms"] == 1000
    assert (stored.values["retention.ms"], stored.values["retention.bytes"]) == (-1, -1)
    assert stored.values["min.compaction.lag.ms"] == LONG_MAX
    assert len(stored.problems) == 1 and "retention.ms" in stored.problems[0]


@pytest.mark.parametrize(
    ("policy", "opened"),
    [("compact", ("compact",)), ("shred", ("compact", "delete")), (None, None)],
)
def test_log_that_may_be_compacted_is_opened_as_compacted(
    policy: str | None, opened: tuple[str, ...] | None
) -> None:
    """Otherwise gaps in its log would count as damage, and the records behind them would be
    truncated.
    """
    texts = {"segment.ms": "7 days", **({} if policy is None else {"cleanup.policy": policy})}
    assert stored_topic_overrides(texts).values.get("cleanup.policy") == opened


def test_name_of_a_later_version_is_ignored_and_the_others_apply() -> None:
    stored = stored_topic_overrides({"of.tomorrow": "1", "retention.ms": "1000"})
    assert stored.values == {"retention.ms": 1000}
    assert "of.tomorrow" in stored.problems[0]


def test_contradicting_values_keep_all_records() -> None:
    stored = stored_topic_overrides(
        {"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"}
    )
    assert stored.values["retention.ms"] == -1 and len(stored.problems) == 1
    assert stored_topic_overrides({}) == ({}, ())


def test_group_with_an_invalid_setting_has_that_of_the_broker() -> None:
    config = BrokerConfig.from_texts({})
    assert group_values(config, {"consumer.session.timeout.ms": "long"}) == group_values(config, {})


def test_json_number_is_accepted_as_a_setting() -> None:
    assert znodes.decode_config(b'{"config":{"retention.ms":5}}') == {"retention.ms": "5"}


@pytest.mark.parametrize("data", [b'{"config":null}', b'{"config":[]}'])
def test_node_that_is_no_config_is_recognised(data: bytes) -> None:
    with pytest.raises(ValueError, match="names to texts"):
        znodes.decode_config(data)


def test_broker_continues_with_unknown_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker({"log.dirs": tmp_path}) as running:
        with RawClient(running.bootstrap) as client:
            create_topic(client, TOPIC)
        broker = running.broker.parts
        broker.image.topic_configs[TOPIC] = {"retention.ms": "a week"}
        broker.image.broker_configs[znodes.DEFAULT_BROKER] = {"log.cleaner.threads": "many"}
        running.wait(broker.metadata_changes([Change(TOPIC), Change(None)]))
        (log,) = broker.logs.logs.values()
        assert log.config.retention_ms == -1
        assert caplog.text.count("is not understood and left out") == 2
        assert not running.broker.failed.done()

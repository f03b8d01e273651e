"""The writes and deletions of a migration to ZooKeeper."""

from __future__ import annotations

import pytest

from millstream.broker.migration.plan import (
    NOTHING_TO_UNDO,
    MigrationPlan,
    Obstacle,
    UndoPlan,
    fingerprint,
    plan_migration,
    plan_undo,
)
from millstream.control import znodes

NODES = {
    "/brokers": b"",
    "/brokers/topics": b"",
    "/brokers/topics/a": b"A",
    "/cluster": b"",
    "/cluster/id": znodes.encode_cluster_id("ours"),
}
RESERVED = {"/cluster": b"", "/cluster/id": znodes.encode_reservation("ours")}
FOREIGN = {"/hbase": b"x", "/hbase/master": b"y"}


def test_empty_tree_is_reserved_and_filled_parents_first():
    missing = ("/brokers", "/brokers/topics", "/brokers/topics/a")
    assert plan_migration(NODES, {}, noted=False) == MigrationPlan(
        whole=False, reserve=True, missing=missing
    )
    assert plan_migration(NODES, FOREIGN, noted=False) == MigrationPlan(
        whole=False, reserve=True, missing=missing
    )


def test_partial_tree_is_completed():
    part = {**RESERVED, "/brokers": b"", "/brokers/topics": b""}
    assert plan_migration(NODES, part, noted=True) == MigrationPlan(
        False, False, ("/brokers/topics/a",)
    )


def test_complete_tree_is_recognised():
    assert plan_migration(NODES, NODES, noted=False) == MigrationPlan(True, False, ())


@pytest.mark.parametrize("change", [{"/brokers/topics/b": b"B"}, {"/brokers/topics/a": b"other"}])
def test_complete_tree_in_use_is_accepted_only_with_a_note(change: dict[str, bytes]):
    assert plan_migration(NODES, NODES | change, noted=True) == MigrationPlan(True, False, ())
    with pytest.raises(Obstacle, match="both have changed since"):
        plan_migration(NODES, NODES | change, noted=False)


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ({"/cluster/id": znodes.encode_cluster_id("theirs")}, "has a cluster already"),
        ({"/cluster/id": znodes.encode_reservation("theirs")}, "target of another migration"),
        ({"/brokers/topics/a": b"other"}, "has /brokers/topics/a already"),
        ({**RESERVED, "/brokers/topics/gone": b""}, "has /brokers/topics/gone already"),
        ({"/controller": b"somebody"}, "has /controller already"),
    ],
)
def test_foreign_nodes_are_an_obstacle(there: dict[str, bytes], complaint: str, noted: bool):
    with pytest.raises(Obstacle, match=complaint):
        plan_migration(NODES, there, noted=noted)


def test_undo_deletes_children_first_and_keeps_other_nodes():
    part = {
        **RESERVED,
        **FOREIGN,
        "/brokers": b"",
        "/brokers/topics": b"",
        "/brokers/topics/a": b"A",
    }
    deletions = ("/brokers/topics/a", "/brokers/topics", "/brokers")
    assert plan_undo(NODES, part) == UndoPlan(ours=True, reopen=False, deletions=deletions)
    assert plan_undo(NODES, NODES) == UndoPlan(ours=True, reopen=True, deletions=deletions)
    others = part | {"/brokers/of-somebody": b"else"}
    assert plan_undo(NODES, others).deletions == ("/brokers/topics/a", "/brokers/topics")


def test_tree_of_another_cluster_has_nothing_to_undo():
    assert plan_undo(NODES, {}) == NOTHING_TO_UNDO
    assert (
        plan_undo(NODES, {**NODES, "/cluster/id": znodes.encode_cluster_id("theirs")})
        == NOTHING_TO_UNDO
    )


def test_tree_in_use_is_not_undone():
    for there in (
        {**NODES, "/brokers/ids/2": b"alive"},
        {k: v for k, v in NODES.items() if "/a" not in k},
    ):
        with pytest.raises(Obstacle, match="cannot be undone"):
            plan_undo(NODES, there)


def test_fingerprint_changes_with_every_change():
    prints = {
        fingerprint(nodes)
        for nodes in (
            NODES,
            {**NODES, "/x": b""},
            {**NODES, "/brokers": b"/"},
            {"/a": b"b"},
            {"/ab": b""},
        )
    }
    assert len(prints) == 5

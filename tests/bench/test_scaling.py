"""The figures of the simulated controller of `bench.scaling`, at a small size."""

import asyncio

import pytest
from bench.scaling import PARTITIONS_PER_TOPIC, ROWS, Size, World, parse_size, table, topics

SMALL = Size(5, 500)


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return asyncio.run(World(SMALL).all())


def test_sizes_are_parsed_as_they_are_printed() -> None:
    assert parse_size(str(SMALL)) == SMALL


def test_tree_has_a_state_for_every_partition() -> None:
    paths = [path for nodes in topics(SMALL) for path, _ in nodes]
    assert (
        len(set(paths)) == len(paths) == SMALL.partitions + SMALL.partitions // PARTITIONS_PER_TOPIC
    )


def test_every_row_of_the_table_has_a_figure(figures: dict[str, float]) -> None:
    from_elsewhere = {"zk_load_s"}
    assert {name for name, _, _ in ROWS} - set(figures) == from_elsewhere
    assert table({SMALL: figures}).count("\n") == len(ROWS) - 1 + 2


def test_change_of_one_partition_writes_and_sends_one_node(figures: dict[str, float]) -> None:
    for name in ("isr", "leader"):
        assert (figures[f"{name}_znodes"], figures[f"{name}_multis"]) == (1, 1)
        assert figures[f"{name}_fed_bytes"] < 200


def test_size_of_a_change_does_not_grow_with_partitions(figures: dict[str, float]) -> None:
    larger = asyncio.run(World(Size(5, 2000)).all())
    for name in (
        "isr_fed_bytes",
        "leader_fed_bytes",
        "leader_znodes",
        "leader_multis",
        "join_znodes",
    ):
        assert larger[name] == pytest.approx(figures[name], rel=0.05), name


def test_lost_broker_loses_leaderships_and_isr_memberships(figures: dict[str, float]) -> None:
    assert figures["failure_leaders"] == pytest.approx(SMALL.partitions / SMALL.brokers, rel=0.1)
    # Its leaderships and ISR memberships, without those that changed before; and its registration.
    assert (
        figures["failure_leaders"]
        < figures["failure_znodes"]
        <= SMALL.partitions * 3 / SMALL.brokers + 1
    )

"""The simulated controller of `bench.scaling`, at a size that takes no time: what its figures count."""

import asyncio

import pytest
from bench.scaling import PARTITIONS_PER_TOPIC, ROWS, Size, World, parse_size, table, topics

SMALL = Size(5, 500)


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return asyncio.run(World(SMALL).all())


def test_sizes_are_read_as_they_are_written() -> None:
    assert parse_size(str(SMALL)) == SMALL


def test_the_tree_has_a_state_for_every_partition() -> None:
    paths = [path for nodes in topics(SMALL) for path, _ in nodes]
    assert len(set(paths)) == len(paths) == SMALL.partitions + SMALL.partitions // PARTITIONS_PER_TOPIC


def test_every_row_of_the_table_has_a_figure(figures: dict[str, float]) -> None:
    from_elsewhere = {"zk_load_s"}
    assert {name for name, _, _ in ROWS} - set(figures) == from_elsewhere
    assert table({SMALL: figures}).count("\n") == len(ROWS) - 1 + 2


def test_a_change_of_one_partition_writes_and_tells_one_node(figures: dict[str, float]) -> None:
    for name in ("isr", "leader"):
        assert (figures[f"{name}_znodes"], figures[f"{name}_multis"]) == (1, 1)
        assert figures[f"{name}_fed_bytes"] < 200


def test_what_one_change_tells_does_not_grow_with_the_partitions(figures: dict[str, float]) -> None:
    larger = asyncio.run(World(Size(5, 2000)).all())
    for name in ("isr_fed_bytes", "leader_fed_bytes", "leader_znodes", "leader_multis", "join_znodes"):
        assert larger[name] == pytest.approx(figures[name], rel=0.05), name


def test_a_lost_broker_loses_what_it_led_and_its_place_in_the_isr(figures: dict[str, float]) -> None:
    assert figures["failure_leaders"] == pytest.approx(SMALL.partitions / SMALL.brokers, rel=0.1)
    # Its leaders and its places as follower, without the ones that were taken from it before; and who is registered.
    assert figures["failure_leaders"] < figures["failure_znodes"] <= SMALL.partitions * 3 / SMALL.brokers + 1

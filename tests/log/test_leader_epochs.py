"""Leader epochs: where each begins and ends, as replicas ask each other (KIP-101, KIP-279)."""

from __future__ import annotations

import pytest

from millstream.log.errors import CorruptFile
from millstream.log.leader_epochs import UNDEFINED, LeaderEpochs


def cache(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_the_file_has_kafkas_format() -> None:
    epochs = cache((0, 0), (2, 15), (3, 40))
    assert epochs.encode() == b"0\n3\n0 0\n2 15\n3 40\n"
    again = LeaderEpochs.parse(epochs.encode(), "x")
    assert again.entries() == epochs.entries()
    assert not again.changed


def test_only_a_new_epoch_makes_an_entry() -> None:
    epochs = cache((1, 5), (1, 9), (1, 20), (4, 30))
    assert epochs.entries() == [(1, 5), (4, 30)]
    assert epochs.latest == 4


def test_entries_that_contradict_a_new_one_are_dropped() -> None:
    assert cache((1, 5), (2, 10), (3, 20), (2, 8)).entries() == [(1, 5), (2, 8)]
    assert cache((1, 5), (3, 10), (4, 10)).entries() == [(1, 5), (4, 10)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, UNDEFINED),
        (0, (0, 10)),  # older than all that is kept: where the kept log begins
        (2, (2, 20)),
        (3, (2, 20)),  # unknown here: the largest one below it
        (4, (4, 35)),
        (5, (4, 35)),
        (7, (7, 50)),  # the latest: the log end
        (8, UNDEFINED),
    ],
)
def test_the_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    assert cache((2, 10), (4, 20), (7, 35)).end_offset(asked, 50) == answer


def test_without_entries_no_end_is_known() -> None:
    assert LeaderEpochs().end_offset(0, 10) == UNDEFINED
    assert LeaderEpochs().latest == -1


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 4), (1000, 4)])
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert cache((2, 10), (4, 20)).epoch_of(offset) == epoch


def test_truncating_the_end_drops_epochs_that_begin_there() -> None:
    epochs = cache((2, 10), (4, 20), (7, 35))
    epochs.truncate_end(21)
    assert epochs.entries() == [(2, 10), (4, 20)]
    epochs.truncate_end(20)
    assert epochs.entries() == [(2, 10)]


def test_truncating_the_start_keeps_the_epoch_in_force_there() -> None:
    epochs = cache((2, 10), (4, 20), (7, 35))
    epochs.truncate_start(25)
    assert epochs.entries() == [(4, 25), (7, 35)]
    epochs.truncate_start(35)
    assert epochs.entries() == [(7, 35)]
    epochs.truncate_start(3)
    assert epochs.entries() == [(7, 35)]


@pytest.mark.parametrize(
    "data",
    [b"\n", b"1\n0\n", b"0\nx\n", b"0\n2\n1 5\n", b"0\n1\n1 a\n", b"0\n1\n1 2 3\n", b"\xff\n0"],
)
def test_corrupt_file_is_reported(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="epochs"):
        LeaderEpochs.parse(data, "the epochs file")


def test_the_file_is_written_only_when_it_would_say_something_else() -> None:
    epochs = LeaderEpochs()
    epochs.assign(3, 0)  # a leader was elected, nothing is appended yet
    assert epochs.take_unsaved(0) is None
    assert epochs.changed, "once there are records it is to be written"
    assert epochs.take_unsaved(5) == b"0\n1\n3 0\n"
    assert not epochs.changed
    epochs.assign(4, 5)
    assert epochs.take_unsaved(5) is None
    epochs.not_saved()
    assert epochs.take_unsaved(5) == b"0\n1\n3 0\n"
    again = LeaderEpochs.parse(b"0\n1\n3 0\n", "x")
    again.assign(4, 5)
    assert again.take_unsaved(5) is None

"""The decisions of a redrive about each dead letter, without a broker."""

from __future__ import annotations

import random

import pytest

from millstream.client.dead_letters.decisions import (
    Candidate,
    Decisions,
    Group,
    LetterPlace,
    NewerRecord,
    Outcome,
    Redelivery,
    Target,
    candidate,
    decide,
    record_order,
)
from millstream.client.dead_letters.letters import Identity, dead_letter, format_first, parse_first
from millstream.client.record import Record

HOME = Target("orders", 0)


def letter(
    at: int, offset: int, key: str | None = "k", *, partition: int = 0, chosen: bool = True
) -> Candidate:
    """Return a letter about the record at an offset of orders-0."""
    group = None if key is None else Group(HOME, True, key.encode())
    record = Identity("orders", 0, offset, 1000 + offset)
    return Candidate(LetterPlace(partition, at), chosen, HOME, record, group, offset)


def newest(offset: int, key: str = "k") -> dict[Group, NewerRecord]:
    return {Group(HOME, True, key.encode()): NewerRecord(offset, 0, offset)}


def words(decisions: Decisions) -> list[str]:
    return [outcome.name.lower() for outcome in decisions.outcomes.values()]


def test_record_is_sent_once_for_several_letters():
    letters = [letter(0, 5), letter(1, 5), letter(0, 5, partition=1), letter(2, 6, "j")]
    decisions = decide(sorted(letters, key=lambda candidate: candidate.at), newest={})
    assert words(decisions) == ["sent", "repeated", "sent", "repeated"]
    assert decisions.ends == {0: 3, 1: 1}


def test_record_that_was_sent_before_is_not_sent_again():
    candidate_letter = letter(0, 5)
    assert candidate_letter.redelivery is not None
    assert words(decide([candidate_letter], done={candidate_letter.redelivery}, newest={})) == [
        "repeated"
    ]
    other = Redelivery("elsewhere", candidate_letter.redelivery.record)
    assert words(decide([candidate_letter], done={other}, newest={})) == ["sent"]


def test_letters_without_origin_are_all_sent():
    letters = [Candidate(LetterPlace(0, at), True, Target("orders", None)) for at in range(3)]
    assert words(decide(letters, newest={})) == ["sent"] * 3


def test_letter_stays_when_its_key_has_a_newer_record():
    decisions = decide([letter(0, 5), letter(1, 6, "j"), letter(2, 5)], newest=newest(9))
    assert words(decisions) == ["newer", "sent", "newer"]
    assert decisions.ends == {0: 2}  # what is behind the last finished letter stays where it is
    assert [(example.letter.at.offset, example.newer.offset) for example in decisions.examples] == [
        (0, 9),
        (2, 9),
    ]
    assert words(decide([letter(0, 5)], newest=None)) == ["sent"]
    assert words(decide([letter(0, 9)], newest=newest(9))) == ["sent"]


def test_letters_of_one_key_go_back_only_in_order():
    assert words(decide([letter(0, 5), letter(1, 9)], newest={})) == ["sent", "sent"]
    assert words(decide([letter(0, 9), letter(1, 5), letter(2, 5)], newest={})) == [
        "sent",
        "newer",
        "newer",
    ]
    assert words(decide([letter(0, 9), letter(1, 5)], newest=None)) == ["sent", "sent"]
    assert words(decide([letter(0, 9, None), letter(1, 5, None)], newest={})) == ["sent", "sent"]


def test_letter_that_is_not_chosen_stays_and_does_not_count():
    decisions = decide(
        [letter(0, 5, chosen=False), letter(1, 5), letter(2, 7, chosen=False)], newest={}
    )
    assert words(decisions) == ["filtered", "sent", "filtered"] and decisions.ends == {0: 2}


def test_limit_sends_no_record_without_newer_ones_of_its_key():
    letters = [letter(0, 5), letter(1, 6, "j"), letter(2, 9)]
    assert words(decide(letters, newest={}, limit=1)) == ["newer", "sent"]
    assert words(decide(letters, newest={}, limit=2)) == ["newer", "sent", "sent"]
    assert words(decide(letters, newest={}, limit=3)) == ["sent", "sent", "sent"]
    assert words(decide(letters, newest=None, limit=1)) == ["sent"]


@pytest.mark.parametrize("seed", range(300))
def test_the_last_record_of_each_key_is_the_newest(seed: int):
    chance = random.Random(seed)
    keys = [chance.choice("ab") for _ in range(chance.randint(1, 8))]
    bad = [offset for offset in range(len(keys)) if chance.random() < 0.6]
    reported = chance.choices(bad, k=chance.randint(1, 10)) if bad else []
    letters = [
        letter(at, offset, keys[offset], chosen=chance.random() < 0.9)
        for at, offset in enumerate(reported)
    ]
    own = {
        candidate_letter.record.offset
        for candidate_letter in letters
        if candidate_letter.chosen and candidate_letter.record
    }
    there: dict[Group, NewerRecord] = {}
    for offset, key in enumerate(keys):
        if offset not in own:
            there |= newest(offset, key)
    limit = chance.choice([None, 1, 2, 3])
    decisions = decide(letters, newest=there, limit=limit)

    log = [(key, offset) for offset, key in enumerate(keys)]
    sent = []
    for candidate_letter in letters:
        if decisions.outcomes.get(candidate_letter.at) is Outcome.SENT:
            assert candidate_letter.record is not None
            sent.append(candidate_letter.record.offset)
            log.append((keys[candidate_letter.record.offset], candidate_letter.record.offset))
    assert len(sent) == len(set(sent)) and (limit is None or len(sent) <= limit)
    for key in set(keys):
        of_key = [order for found_key, order in log if found_key == key]
        assert of_key[-1] == max(of_key)
    if limit and decide(letters, newest=there).count(Outcome.SENT):
        assert sent


def test_order_of_a_record_that_was_sent_back_is_that_of_its_original():
    first = Identity("orders", 0, 5, 1005)
    back = Identity("orders", 0, 20, 2000)
    assert record_order(back, first, by_offset=True) == 5
    assert record_order(back, first, by_offset=False) == 1005
    assert record_order(back, None, by_offset=True) == 20
    assert record_order(back, first._replace(partition=1), by_offset=True) == 20
    assert (
        record_order(first, back, by_offset=True) == 5
    )  # a place behind the record is not its original


def test_letter_is_ordered_by_offset_at_home_and_by_time_elsewhere():
    about = {
        "dlq.topic": "orders",
        "dlq.partition": "0",
        "dlq.offset": "20",
        "dlq.timestamp": "2000",
    }
    headers = tuple((name, value.encode()) for name, value in about.items())
    first = ("dlq.first", format_first(Identity("orders", 0, 5, 1005)))
    record = Record("orders.dlq", 1, 7, 9000, "create", b"k", None, headers)
    again = record._replace(headers=(*headers, first))
    elsewhere = Target("other", None)
    orders = [
        candidate(dead_letter(source), to, chosen=True).order
        for source in (record, again)
        for to in (HOME, elsewhere)
    ]
    assert orders == [20, 2000, 5, 1005]
    bare = record._replace(headers=())
    assert candidate(dead_letter(bare), elsewhere, chosen=True).order == 9000
    assert candidate(dead_letter(record._replace(key=None)), HOME, chosen=True).group is None


@pytest.mark.parametrize("identity", [Identity("a-b.c", 12, 2**62, 17), Identity("o", 0, 0, None)])
def test_position_of_an_original_survives_its_header(identity: Identity):
    assert parse_first(format_first(identity)) == identity


@pytest.mark.parametrize("value", [None, b"", b"orders", b"orders-0", b"orders-0:x@", b"\xff"])
def test_malformed_header_has_no_position(value: bytes | None):
    assert parse_first(value) is None

"""A transaction shard under random clients, crashes, failing appends, slow markers and timeouts.

Each seed is a story. Clients initialize, join, write and end, several under one transactional id;
the host may lose its shard and the tail of its log at every step. After each: the log replayed is
the live state, no transaction has two outcomes, and whatever a client was told stays true. A
failing seed runs alone: `pytest -k 'story[17]'`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.transactions.metadata import NO_TIMEOUT_MS, TransactionMetadata
from millstream.transactions.records import encode, record_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.states import IDLE, TransactionState
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from support.transactions.world import Request, TinyHost, Transaction, replay

SEEDS = 150
STEPS = 250
IDS = ["orders", "payments"]
TOPIC = [TopicPartition("t", n) for n in range(4)]
OFFSETS = TopicPartition("__consumer_offsets", 5)
TIMEOUT_MS = 3_000
# 32767 is kept for fencing, no client ever gets it.
LAST_EPOCH = 32_766


class Client:
    """A producer that sends one request at a time and believes what it is told."""

    def __init__(self, name: str, version_2: bool) -> None:
        self.name = name
        self.version_2 = version_2
        self.producer = (-1, -1)
        self.transaction: Transaction | None = None
        self.took_over = False
        # Another producer began under this id: nothing this client asks for may succeed any more.
        self.fenced = False
        self.request: Request | None = None
        # An end whose answer was lost: asked again, it must not have another outcome.
        self.unanswered: tuple[bool, tuple[int, int], Transaction | None] | None = None


class Story:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.settings = TransactionSettings(
            transactional_id_expiration_ms=self.dice.choice([20_000, 10**9]),
            transaction_abort_timed_out_transaction_cleanup_interval_ms=self.dice.choice([1, 500]),
            transaction_remove_expired_transaction_cleanup_interval_ms=5_000,
            transaction_two_phase_commit_enable=self.dice.random() < 0.5,
            transaction_version=self.dice.choice([0, 1, 2, 2, 2]),
            transactional_ids_max_bytes=self.dice.choice([sys.maxsize, 1_000]),
        )
        self.host = TinyHost(self.dice, self.settings, self.worn_out())
        # Where the version was lowered, clients that have not heard of it go on by the newer rules.
        new_clients = 0.7 if self.settings.transaction_version == 2 else 0.2
        self.clients = [
            Client(name, self.dice.random() < new_clients) for name in IDS for _ in range(3)
        ]
        self.numbers = 0
        # What clients were told of their ends: it must be what the log says, for ever.
        self.told: dict[Transaction, bool] = {}

    def worn_out(self) -> list[tuple[bytes, bytes | None]]:
        """One id begins shortly before its epochs are used up."""
        if self.dice.random() < 0.5:
            return []
        worn = TransactionMetadata(
            producer_id=5,
            producer_epoch=32_763 + self.dice.randrange(4),
            state=TransactionState.EMPTY,
            timeout_ms=TIMEOUT_MS,
            last_update_ms=1_000_000,
            previous_producer_id=5,
        )
        return [encode(record_of(IDS[0], worn, self.settings.transaction_version))]

    # ---- steps ----

    def step(self) -> None:
        self.host.now_ms += self.dice.choice([1, 1, 1, 1, 10, 100])
        act = self.dice.choices(
            [
                self.send,
                self.host.become_durable,
                self.host.write_a_marker,
                self.trouble,
                self.wait,
            ],
            [20, 20, 14, 1, 1],
        )[0]
        act()
        self.host.allocate(failing=0.1)
        self.host.fire_timers()
        self.hear()
        self.host.check()

    def wait(self) -> None:
        self.host.now_ms += self.dice.choice([1_000, 4_000, 4_000, 25_000])

    def trouble(self) -> None:
        if self.dice.random() < 0.5:
            self.host.crash()
        self.host.failing = self.dice.choice([0.0, 0.0, 0.1])

    def send(self) -> None:
        self.forget_lost_requests()
        idle = [client for client in self.clients if client.request is None]
        if idle:
            client = self.dice.choice(idle)
            self.dice.choices([self.init, self.join, self.offsets, self.end], self.plans(client))[
                0
            ](client)

    def plans(self, client: Client) -> tuple[int, int, int, int]:
        """Mostly what makes sense to a client: else no transaction would ever come to its end."""
        if client.producer == (-1, -1):
            return (20, 1, 1, 1)
        if client.fenced or client.unanswered is not None:
            return (1, 3, 1, 6)
        return (1, 8, 2, 4) if client.transaction is None else (1, 3, 1, 12)

    def forget_lost_requests(self) -> None:
        for client in self.clients:
            if client.request is not None and client.request.number not in self.host.waiting:
                self.lost(client, client.request)
                client.request = None

    def lost(self, client: Client, request: Request) -> None:
        if request.kind == "end":
            client.unanswered = (request.what, request.fields["producer"], request.transaction)

    def ask(self, client: Client, kind: str, decide: Any, **about: Any) -> None:
        self.numbers += 1
        request = Request(self.numbers, client, kind, **about)
        client.request = request
        self.host.waiting.add(request.number)
        self.host.execute(decide(request))

    # ---- requests ----

    def init(self, client: Client) -> None:
        named = client.producer if self.dice.random() < 0.3 else (-1, -1)
        two_phase = self.settings.transaction_two_phase_commit_enable and self.dice.random() < 0.3
        keeps = two_phase and self.settings.transaction_version == 2 and self.dice.random() < 0.7
        request = InitProducerIdRequest(
            transactional_id=client.name,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=named[0],
            producer_epoch=named[1],
            enable_two_phase_commit=two_phase,
            keep_prepared_txn=keeps,
        )
        shard, now_ms = self.host.shard, self.host.now_ms
        self.ask(
            client,
            "init",
            lambda waiter: shard.decide_init_producer_id(request, 6, waiter, now_ms=now_ms),
            what=named != (-1, -1),
            fields={"fenced": client.fenced},
        )

    def join(self, client: Client) -> None:
        partitions = self.dice.sample(TOPIC, self.dice.randint(1, 3))
        asked = AddPartitionsToTxnTransaction(
            transactional_id=client.name,
            producer_id=client.producer[0],
            producer_epoch=client.producer[1],
            topics=[
                AddPartitionsToTxnTopic(name="t", partitions=[tp.partition for tp in partitions])
            ],
        )
        version = 5 if client.version_2 else 3
        shard, now_ms = self.host.shard, self.host.now_ms
        self.ask(
            client,
            "join",
            lambda waiter: shard.decide_add_partitions(asked, version, waiter, now_ms=now_ms),
            what=partitions,
            fields={"fenced": client.fenced},
        )

    def offsets(self, client: Client) -> None:
        asked = AddOffsetsToTxnRequest(
            transactional_id=client.name,
            producer_id=client.producer[0],
            producer_epoch=client.producer[1],
            group_id="g",
        )
        shard, now_ms = self.host.shard, self.host.now_ms
        self.ask(
            client,
            "join",
            lambda waiter: shard.decide_add_offsets(
                asked, 3, waiter, offsets_partition=OFFSETS, now_ms=now_ms
            ),
            what=[OFFSETS],
            fields={"fenced": client.fenced},
        )

    def end(self, client: Client) -> None:
        """A new end, or once more the one whose answer was lost."""
        commit = self.dice.random() < 0.6
        producer, transaction = client.producer, client.transaction
        if client.unanswered is not None and self.dice.random() < 0.8:
            commit, producer, transaction = client.unanswered
        asked = EndTxnRequest(
            transactional_id=client.name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        version = 5 if client.version_2 or client.took_over else 3
        shard, now_ms = self.host.shard, self.host.now_ms
        self.ask(
            client,
            "end",
            lambda waiter: shard.decide_end_txn(asked, version, waiter, now_ms=now_ms),
            what=commit,
            transaction=transaction,
            fields={"fenced": client.fenced, "producer": producer, "version": version},
        )

    # ---- answers ----

    def hear(self) -> None:
        while self.host.answers:
            reply = self.host.answers.popleft()
            request: Request = reply.to
            client: Client = request.client
            assert client.request is request
            client.request = None
            code = code_of(reply.response)
            self.host.happened[f"{request.kind} {ErrorCode(code).name}"] += 1
            if code == 0:
                if not self.forgotten(client.name):
                    assert not request.fields["fenced"] or request.kind == "init"
                getattr(self, f"{request.kind}ed")(client, request, reply.response)

    def forgotten(self, name: str) -> bool:
        return any(known is None for id_, known in self.host.history() if id_ == name)

    def inited(self, client: Client, request: Request, response: Any) -> None:
        if request.fields["fenced"] and request.what:
            assert self.forgotten(client.name), "a zombie named its epoch and was let in"
        assert response.producer_epoch <= LAST_EPOCH
        client.producer = (response.producer_id, response.producer_epoch)
        client.took_over = response.ongoing_txn_producer_id != -1
        client.transaction = None
        client.unanswered = None
        client.fenced = False
        for other in self.clients:
            if (
                other.name == client.name
                and other is not client
                and other.producer != client.producer
            ):
                other.fenced = True

    def joined(self, client: Client, request: Request, response: Any) -> None:
        """The records follow at once, if the transaction is still open under this producer."""
        known = self.host.shard.durable.get(client.name)
        if (
            known is None
            or known.state is not TransactionState.ONGOING
            or known.client != client.producer
        ):
            return
        client.transaction = (client.name, known.start_ms)
        for tp in request.what:
            if tp in known.partitions:
                self.host.partitions.write(tp, known.producer_id, client.transaction)

    def ended(self, client: Client, request: Request, response: Any) -> None:
        if request.transaction is not None:
            recorded = self.host.recorded_outcomes()
            assert recorded[request.transaction] == request.what, (
                "an end was answered that did not happen"
            )
            assert self.told.setdefault(request.transaction, request.what) == request.what
        if request.fields["version"] == 5 and client.producer == request.fields["producer"]:
            client.producer = (response.producer_id, response.producer_epoch)
            assert response.producer_epoch <= LAST_EPOCH
        client.unanswered = None
        client.transaction = None
        client.took_over = False

    # ---- the end ----

    def settle(self) -> None:
        """No more trouble: everything open comes to its end by itself."""
        self.host.failing = 0.0
        for _ in range(400):
            self.host.now_ms += 500
            self.host.durable = len(self.host.log)
            self.host.become_durable()
            self.host.allocate()
            self.host.write_a_marker()
            self.host.fire_timers()
        self.host.answers.clear()

    def check_settled(self) -> None:
        recorded = self.host.recorded_outcomes()
        for transaction, outcomes in self.host.partitions.outcomes.items():
            assert outcomes == {recorded[transaction]}
        for transaction, commit in self.told.items():
            assert recorded[transaction] == commit
        endless = set()
        for name, known in self.host.shard.durable.items():
            if known.timeout_ms == NO_TIMEOUT_MS and known.state is TransactionState.ONGOING:
                endless.add(name)
            else:
                assert known.state in IDLE
        assert {name for name, _ in self.host.partitions.still_open} <= endless
        self.host.check_history()
        compacted = replay(self.host.compacted(), 1, self.settings)
        assert compacted.durable == self.host.shard.durable


def code_of(response: Any) -> int:
    if hasattr(response, "error_code"):
        return int(response.error_code)
    return int(response.topic_results[0].results_by_partition[0].partition_error_code)


def tell(seed: int) -> Story:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.settle()
    story.check_settled()
    return story


@pytest.mark.parametrize("seed", range(SEEDS))
def test_story(seed: int) -> None:
    tell(seed)


def test_the_stories_see_everything() -> None:
    """A run that did too little proves nothing."""
    happened: dict[str, int] = {}
    for seed in range(40):
        for what, count in tell(seed).host.happened.items():
            happened[what] = happened.get(what, 0) + count
    expected = {
        *("crash", "append failed", "forgotten", "expired early", "no room"),
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("init NONE", "init CONCURRENT_TRANSACTIONS", "init PRODUCER_FENCED"),
        *(
            "join NONE",
            "join PRODUCER_FENCED",
            "join CONCURRENT_TRANSACTIONS",
            "join INVALID_PRODUCER_ID_MAPPING",
        ),
        *(
            "end NONE",
            "end PRODUCER_FENCED",
            "end CONCURRENT_TRANSACTIONS",
            "end INVALID_TXN_STATE",
        ),
    }
    assert {what: happened.get(what, 0) for what in expected if happened.get(what, 0) < 20} == {}

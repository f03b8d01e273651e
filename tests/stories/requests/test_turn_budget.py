"""No request holds the event loop: every API at its largest request takes a few milliseconds of CPU
in a turn.

A turn is all callbacks that are ready at once, so that many small ones do not pass either. Requests
are made from the declarations: each array of a message filled, with equal items and with others,
about things that exist and that do not. ``make test`` sends requests of 64 KB, ``make budget`` the
largest that are read, 4 MB, in the oldest version as well and to a broker that refuses them because
it is no coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from millstream.broker.net.dispatch import MAX_DECODED_BYTES
from millstream.wire.apis import APIS, BY_NAME, Api
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.largest_requests import LargeRequest, largest_requests
from support.processes import complaints, wait_until
from support.raw import Closed, RawClient, create_topic, produce, request_frame
from support.samples import Known
from support.timed_broker import Busiest, TimedBroker

BUDGET_MS = 50.0
# A turn may be slow by chance: the garbage collector looks at all objects, or a cache is cold.
RUNS = 3
SMALL, LARGE = 64 * 1024, MAX_DECODED_BYTES - 1024
# Produce has a limit on partitions, which is reached before that of its bytes.
LARGEST_PRODUCE = 1024 * 1024
LONG_S = 300.0
SETTINGS = {
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "auto.create.topics.enable": "false",
}
# Requests to the coordinator of a group or of a transaction.
OF_COORDINATORS = (
    "AddPartitionsToTxn",
    "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat",
    "DeleteGroups",
    "DescribeGroups",
    "DescribeTransactions",
    "JoinGroup",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetDelete",
    "OffsetFetch",
    "SyncGroup",
    "TxnOffsetCommit",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    with TimedBroker(tmp_path_factory.mktemp("timed"), SETTINGS).start() as broker:
        yield broker


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    """A broker that coordinates nothing: there are no internal topics yet."""
    with TimedBroker(tmp_path_factory.mktemp("fresh"), SETTINGS).start() as broker:
        yield broker


@pytest.fixture(scope="module")
def known(broker: TimedBroker) -> Known:
    """What the requests name: a topic, a group and a transactional id that exist."""
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, "wide", 200)
        for key_type in (0, 1):
            client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), 4)
        commit_offsets(client, "g", 200)
    return values(topic_id, str(broker.data_dir))


def commit_offsets(client: RawClient, group: str, count: int) -> None:
    rows = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=0) for n in range(count)
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="wide", partitions=rows)],
    )
    (topic,) = client.call(request, 8).topics
    assert {row.error_code for row in topic.partitions} == {0}


def values(topic_id: bytes, directory: str) -> Known:
    known: dict[str, object] = {
        "acks": 1,
        "broker_ids": [0],
        "CreatableTopic.name": "new",
        "count": 201,
        "current_leader_epoch": -1,
        "cursor": None,
        "DescribeConfigsResource.configuration_keys": None,
        "election_type": 0,
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "group_id": "g",
        "group_instance_id": None,
        "include_documentation": False,
        "include_synonyms": False,
        "index": 0,
        "isolation_level": 0,
        "key_type": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "max_wait_ms": 0,
        "member_id": "",
        "name": "wide",
        "num_partitions": 1,
        "OffsetFetchRequestGroup.member_epoch": -1,
        "OffsetFetchRequestGroup.member_id": None,
        "partition": 0,
        "partition_index": 0,
        "path": directory,
        "producer_epoch": 0,
        "producer_id": 1,
        "records": build_batch([Record(0, -1, b"k", b"v", ())]),
        "replica_id": -1,
        "replication_factor": 1,
        "resource_name": "0",
        "resource_type": 4,
        "session_epoch": -1,
        "session_id": 0,
        "timeout_ms": 1000,
        "timestamp": -1,
        "topic": "wide",
        "topic_id": topic_id,
        "topic_name": "wide",
        "transactional_id": "t",
        "validate_only": True,
        "verify_only": False,
    }
    for api in APIS:
        for name, value in simple_arrays(api.request_class()).items():
            known.setdefault(name, value)
    return known


def simple_arrays(cls: type) -> dict[str, object]:
    """Arrays of partitions and of names."""
    found: dict[str, object] = {}
    for field in cls.fields:  # type: ignore[attr-defined]
        if isinstance(field.item, type):
            found |= simple_arrays(field.item)
        elif field.kind == "array" and field.item in ("int32", "string"):
            found[f"{cls.__name__}.{field.name}"] = [0] if field.item == "int32" else ["g"]
    return found


def send(broker: TimedBroker, request: LargeRequest) -> Busiest:
    """The busiest callback of the broker until the request is answered, or refused as a whole."""
    with RawClient(broker.bootstrap, timeout_s=LONG_S) as client:
        broker.forget()
        client.write(request_frame(request.api, request.version, request.message))
        try:
            client.read_frame()
        except Closed:
            pass  # an answer of more than 100 MB, or more partitions than are read
        return broker.busiest()


def check(
    broker: TimedBroker, known: Known, api: Api, size: int, version: int | None = None
) -> None:
    slow = {}
    for request in largest_requests(api, known, size, version):
        for _ in range(RUNS):
            busiest = send(broker, request)
            if busiest.turn_ms <= BUDGET_MS:
                break
        else:
            slow[str(request)] = busiest
    assert slow == {}
    assert complaints(broker.output()) == []


WITH_ARRAYS = [
    api for api in APIS if next(largest_requests(api, values(bytes(16), "/"), 100), None)
]


@pytest.mark.parametrize("api", WITH_ARRAYS, ids=lambda api: api.name)
def test_request_of_many_items_leaves_turns_to_others(
    broker: TimedBroker, known: Known, api: Api
) -> None:
    check(broker, known, api, SMALL)


@pytest.mark.long
@pytest.mark.parametrize("api", WITH_ARRAYS, ids=lambda api: api.name)
def test_largest_request_leaves_turns_to_others(
    broker: TimedBroker, known: Known, api: Api
) -> None:
    check(broker, known, api, LARGEST_PRODUCE if api.name == "Produce" else LARGE)


@pytest.mark.long
@pytest.mark.parametrize(
    "api", [api for api in WITH_ARRAYS if api.min_version < api.newest], ids=lambda api: api.name
)
def test_largest_request_of_the_oldest_version_leaves_turns_to_others(
    broker: TimedBroker, known: Known, api: Api
) -> None:
    check(broker, known, api, LARGEST_PRODUCE if api.name == "Produce" else LARGE, api.min_version)


@pytest.mark.long
@pytest.mark.parametrize("name", OF_COORDINATORS)
def test_refusal_of_the_largest_request_leaves_turns_to_others(
    fresh: TimedBroker, name: str
) -> None:
    check(fresh, values(bytes(16), str(fresh.data_dir)), BY_NAME[name], LARGE)


def is_idle(broker: TimedBroker) -> bool:
    """Whether the broker has had nothing to do for a moment."""
    before = broker.cpu_s()
    threading.Event().wait(0.2)
    return broker.cpu_s() - before < 0.05


@pytest.mark.long
def test_append_that_ends_hundreds_of_waits_leaves_turns_to_others(
    broker: TimedBroker, known: Known
) -> None:
    """Clients that pipeline fetches of a session, each of which waits for a thousand partitions."""
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "watched", 1000)
        rows = [FetchPartition(partition=n, partition_max_bytes=1000) for n in range(1000)]
        values = {"max_wait_ms": 100_000, "min_bytes": 1, "max_bytes": 1 << 20}
        opening = FetchRequest(
            session_epoch=0,
            topics=[FetchTopic(topic="watched", partitions=rows)],
            **(values | {"max_wait_ms": 0}),
        )
        slow = []
        for offset in range(RUNS):
            waiting = [RawClient(broker.bootstrap) for _ in range(4)]
            for one in waiting:
                session = one.call(opening, 12).session_id
                for epoch in range(1, 400):
                    one.send(FetchRequest(session_id=session, session_epoch=epoch, **values), 12)
            wait_until(lambda: is_idle(broker), "all fetches to wait")
            broker.forget()
            assert produce(client, "watched", 500, known["records"]).base_offset == offset  # type: ignore[arg-type]
            for one in waiting:
                one.receive()
            slow.append(broker.busiest())
            broker.forget()
            for one in waiting:
                one.close()
            wait_until(lambda: is_idle(broker), "the fetches to be abandoned")
            slow.append(broker.busiest())
            if max(busiest.callback_ms for busiest in slow[-2:]) <= BUDGET_MS:
                return
        pytest.fail(f"too slow: {slow}")

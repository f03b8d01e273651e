"""A new transactional id for each run, many times: the coordinator stays within its memory, also
after a restart.
"""

from __future__ import annotations

from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.world.disk import SimDisk
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from support.in_process import InProcessBroker
from support.raw import RawClient

# One partition gets a quarter of a MiB: room for four hundred ids.
SETTINGS: dict[str, object] = {
    "log.dirs": "/data",
    "transaction.state.log.num.partitions": 1,
    "transactional.ids.memory.max.bytes": 256 * 1024,
}
WAIT = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def begin(client: RawClient, name: str) -> Any:
    while True:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = client.call(request, 4)
        if answer.error_code not in WAIT:
            return answer


def known(client: RawClient) -> list[str]:
    while True:
        answer = client.call(ListTransactionsRequest(), 0)
        if answer.error_code not in WAIT:
            return sorted(row.transactional_id for row in answer.transaction_states)


def test_ids_of_many_runs_stay_within_their_memory() -> None:
    disk = SimDisk()
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["run-0000"]), 4)
        first = begin(client, "run-0000")
        for number in range(1, 1000):
            assert begin(client, f"run-{number:04}").error_code == 0
        names = known(client)
        assert 300 < len(names) < 550 and names[-1] == "run-0999" and "run-0000" not in names
        offsets = AddOffsetsToTxnRequest(
            transactional_id="run-0000",
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            group_id="g",
        )
        assert client.call(offsets, 3).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert begin(client, "run-0000").error_code == 0, "with a new producer id, like any other"
        names = known(client)
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        assert known(client) == names

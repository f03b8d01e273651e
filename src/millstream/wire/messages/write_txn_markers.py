"""WriteTxnMarkers (key 27): write the coordinator's decision to the partitions.

v2 has the transaction version (KIP-1228).
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    name: str = string("0+")
    partition_indexes: list[int] = array("int32", "0+")


class WritableTxnMarker(Struct):
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+")


class WriteTxnMarkersRequest(Struct, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, "0+"
    )


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Struct, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")

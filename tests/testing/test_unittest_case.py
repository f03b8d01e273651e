"""``BrokerTestCase`` as unittest runs it: a broker for each test, or for each class."""

from __future__ import annotations

import unittest
from typing import ClassVar

from millstream.client.errors import ClientError
from millstream.testing import BrokerTestCase


def run(case: type[unittest.TestCase]) -> unittest.TestResult:
    return unittest.defaultTestLoader.loadTestsFromTestCase(case).run(unittest.TestResult())


def test_each_test_has_a_fresh_broker_with_the_settings_of_the_class() -> None:
    addresses: list[str] = []

    class Orders(BrokerTestCase):
        settings: ClassVar = {"num.partitions": 3}

        def setUp(self) -> None:
            super().setUp()
            addresses.append(self.millstream.bootstrap)

        def test_produce(self) -> None:
            self.millstream.produce("orders", [b"1"])
            self.assertEqual(len(self.millstream.end_offsets("orders")), 3)

        def test_produce_again(self) -> None:
            self.assertEqual(list(self.millstream.admin.topics.names()), [])

    result = run(Orders)
    assert result.testsRun == 2 and result.wasSuccessful(), result.errors + result.failures
    assert len(set(addresses)) == 2


def test_shared_broker_lasts_as_long_as_the_class() -> None:
    brokers = []

    class Orders(BrokerTestCase):
        shared = True

        def test_1_produces(self) -> None:
            self.millstream.produce("orders", [b"1"])
            brokers.append(self.millstream)

        def test_2_consumes(self) -> None:
            self.assertEqual(self.millstream.consume("orders", n=1)[0].value, b"1")
            brokers.append(self.millstream)

    result = run(Orders)
    assert result.testsRun == 2 and result.wasSuccessful(), result.errors + result.failures
    assert brokers[0] is brokers[1] and not brokers[0].broker.alive


def test_broker_ends_if_the_rest_of_set_up_fails() -> None:
    brokers = []

    class Orders(BrokerTestCase):
        def setUp(self) -> None:
            super().setUp()
            brokers.append(self.millstream)
            raise ClientError("no such fixture")

        def test_nothing(self) -> None:
            pass

    result = run(Orders)
    assert len(result.errors) == 1 and not brokers[0].broker.alive

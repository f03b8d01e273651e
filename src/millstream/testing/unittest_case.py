"""``BrokerTestCase``: a broker for the tests of Python's ``unittest``.

    class OrdersTest(BrokerTestCase):
        settings = {"num.partitions": 3}

        def test_orders_are_kept(self):
            self.millstream.produce("orders", [b"1"])

Every test gets a fresh broker, which takes milliseconds. ``shared = True`` starts one broker for
the tests of the class instead.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import ClassVar

from millstream.testing.kafka import Kafka
from millstream.testing.start import broker


class BrokerTestCase(unittest.TestCase):
    """A test case with a broker in ``self.millstream``. Call ``super()`` if you override set-up."""

    settings: ClassVar[Mapping[str, object] | None] = None
    process: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    millstream: Kafka

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if cls.shared:
            cls.millstream = cls.enterClassContext(broker(cls.settings, process=cls.process))

    def setUp(self) -> None:
        super().setUp()
        if not self.shared:
            self.millstream = self.enterContext(broker(self.settings, process=self.process))

"""``millstream.testing``: a broker in every test, its faults, its death, and its
journeys in time.
"""

from __future__ import annotations

import asyncio
import pkgutil
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream import testing
from millstream.broker.temporary_data import _sweep_once
from millstream.client.errors import ClientError, DeliveryFailed, UnknownTopic
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until

HERE = Path(__file__).parent


def values(records) -> list[bytes]:
    return [record.value for record in records]


def test_every_test_gets_a_fresh_broker(millstream: Kafka) -> None:
    assert list(millstream.admin.topics.names()) == []
    assert millstream.produce("orders", [b"1", (b"key", b"2")]) == 2
    assert [(one.key, one.value) for one in millstream.consume("orders")] == [
        (None, b"1"),
        (b"key", b"2"),
    ]


def test_what_is_not_there_yet_is_waited_for(millstream: Kafka) -> None:
    late = threading.Timer(0.3, millstream.produce, ("counts", [b"2"]))
    late.start()
    assert values(millstream.consume("counts", n=1)) == [b"2"]
    late.join()


@pytest.mark.millstream(settings={"num.partitions": 3})
def test_a_marker_gives_settings(millstream: Kafka) -> None:
    millstream.produce("orders", [b"1"])
    assert len(millstream.end_offsets("orders")) == 3


def test_topics_have_settings_by_name(millstream: Kafka) -> None:
    name = millstream.topic("orders", 2, retention_ms=1000)
    found = {one.name: one.value for one in millstream.admin.configs.describe("topic", name)}
    assert (found["retention.ms"], millstream.end_offsets(name)) == ("1000", {0: 0, 1: 0})
    assert millstream.topic("orders") == "orders"  # there already


def test_a_lost_answer_is_asked_for_again_and_nothing_is_doubled(millstream: Kafka) -> None:
    millstream.topic("orders")
    with millstream.faults.drop_response("Produce") as fault, millstream.producer() as producer:
        producer.send("orders", b"1")
    assert fault.happened == 1
    assert values(millstream.consume("orders")) == [b"1"]


def test_a_lost_request_is_sent_again(millstream: Kafka) -> None:
    millstream.topic("orders")
    with millstream.faults.drop_request("Produce") as fault:
        millstream.produce("orders", [b"1"])
    assert (fault.happened, values(millstream.consume("orders"))) == (1, [b"1"])


def test_an_api_can_be_made_to_refuse(millstream: Kafka) -> None:
    millstream.topic("orders")
    with (
        millstream.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED") as fault,
        pytest.raises(DeliveryFailed),
    ):
        millstream.produce("orders", [b"1"])
    assert fault.happened == 1
    with millstream.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER") as fault:
        millstream.produce("orders", [b"2"])  # that one is worth a second try
    assert (fault.happened, values(millstream.consume("orders"))) == (1, [b"2"])
    with (
        millstream.faults.error("CreateTopics", "POLICY_VIOLATION"),
        pytest.raises(ClientError, match="olicy"),
    ):
        millstream.topic("more")
    with millstream.faults.error("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=2) as fault:
        consumer = millstream.consumer("orders", group="readers", until_end=True)
        assert values(consumer) == [b"2"]
    assert fault.happened == 2


def test_a_delay_holds_up_its_api(millstream: Kafka) -> None:
    millstream.topic("orders")
    done = threading.Event()
    with millstream.faults.delay("Produce", 3600) as fault:
        producer = millstream.producer()
        producer.send("orders", b"1")
        fault.wait()
        assert not done.is_set()
        assert values(millstream.consume("orders")) == []
    millstream.drop_connections()
    producer.close()
    assert values(millstream.consume("orders")) == [b"1"]


@pytest.mark.parametrize("kind", ["drop_response", "delay"])
def test_a_fetch_that_waits_for_records_may_fail_as_well(millstream: Kafka, kind: str) -> None:
    millstream.topic("orders")
    faults = millstream.faults
    with (
        faults.drop_response("Fetch", times=2)
        if kind == "drop_response"
        else faults.delay("Fetch", 0.01) as fault
    ):
        records = iter(millstream.consumer("orders"))
        taken: list[bytes | None] = []
        reader = threading.Thread(
            target=lambda: taken.extend(next(records).value for _ in range(3))
        )
        reader.start()
        fault.wait()
        for value in (b"1", b"2", b"3"):
            millstream.produce("orders", [value])
        reader.join(30)
    assert (taken, fault.happened > 0) == ([b"1", b"2", b"3"], True)


def test_unknown_apis_and_errors_are_refused_with_the_nearest_name(millstream: Kafka) -> None:
    with pytest.raises(ValueError, match="did you mean 'Produce'"):
        millstream.faults.drop_request("Prodce")
    with pytest.raises(ValueError, match="unknown error 'NOPE'"):
        millstream.faults.error("Produce", "NOPE")


@pytest.mark.parametrize("kill", [True, False])
def test_a_restart_keeps_address_and_records(millstream: Kafka, kill: bool) -> None:
    millstream.produce("orders", [b"1"])
    bootstrap = millstream.bootstrap
    millstream.restart(kill=kill)
    millstream.produce("orders", [b"2"])
    assert millstream.bootstrap == bootstrap
    assert values(millstream.consume("orders")) == [b"1", b"2"]


@pytest.mark.millstream(process=True)
def test_a_broker_may_be_a_process_of_its_own(millstream: Kafka) -> None:
    millstream.produce("orders", [b"1"])
    millstream.restart(kill=True)
    assert values(millstream.consume("orders", n=1)) == [b"1"]
    with pytest.raises(NotImplementedError, match="in the test's process"):
        millstream.faults.clear()


def test_retention_deletes_what_is_too_old_after_a_journey_in_time(millstream: Kafka) -> None:
    millstream.topic("orders", retention_ms=7 * 86_400_000)
    millstream.produce("orders", [b"old"])
    millstream.advance(days=6)
    assert values(millstream.consume("orders")) == [b"old"]
    millstream.advance(days=2)
    assert values(millstream.consume("orders")) == []
    millstream.produce("orders", [b"new"])  # it has the time of the broker
    millstream.advance(days=1)
    assert values(millstream.consume("orders")) == [b"new"]


def test_without_pytest_and_with_a_directory_that_stays(tmp_path: Path) -> None:
    with testing.broker(directory=tmp_path) as kafka:
        kafka.produce("orders", [b"1"])
    with testing.broker(directory=tmp_path) as kafka:
        assert values(kafka.consume("orders")) == [b"1"]


def test_nothing_is_left_behind_even_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), testing.broker() as kafka:
        kafka.produce("orders", [b"1"])
        kafka.consumer("orders", group="left-open")
        data = Path(kafka.broker.settings["log.dirs"])
        assert data.exists()
        1 / 0  # noqa: B018
    assert not data.exists()
    assert not kafka.broker.alive


def test_under_asyncio() -> None:
    async def story() -> list[bytes]:
        async with testing.async_broker() as kafka:
            await kafka.topic("orders")
            await kafka.produce("orders", [b"1"])
            await kafka.restart(kill=True)
            return values(await kafka.consume("orders", n=1))

    assert asyncio.run(story()) == [b"1"]


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(Exception, match=r"num\.partitions"), testing.broker({"num.partitons": 3}):
        pass


def test_the_plugin_alone_loads_no_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_nothing_is_loaded():
            loaded = [name for name in sys.modules if name.startswith("millstream")]
            assert set(loaded) <= {"millstream", "millstream.testing", "millstream.testing.plugin"}, loaded
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "millstream.testing.plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1)


def test_workers_in_parallel_do_not_disturb_each_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("number", range(6))
        def test_mine_alone(millstream, number):
            millstream.produce("orders", [str(number)])
            assert [one.value for one in millstream.consume("orders")] == [str(number).encode()]
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "millstream.testing.plugin", "-p", "no:cacheprovider", "-n", "2"
    )
    result.assert_outcomes(passed=6)


def test_a_topic_that_does_not_exist_is_told(millstream: Kafka) -> None:
    with pytest.raises(UnknownTopic, match="'missing'"):
        millstream.consume("missing")
    assert list(millstream.admin.topics.names()) == []


def test_journeys_back_and_faults_that_never_happen_are_refused(millstream: Kafka) -> None:
    with pytest.raises(ValueError, match="only be set forward, not by -3600 s"):
        millstream.advance(hours=-1)
    with pytest.raises(ValueError, match="must not be negative: -1 s"):
        millstream.faults.delay("Produce", -1)
    with pytest.raises(ValueError, match="at least 1, or None for every request, not 0"):
        millstream.faults.drop_request("Produce", times=0)


def test_markers_that_would_be_ignored_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.millstream(setings={"num.partitions": 3})
        def test_typo(millstream): pass
        @pytest.mark.millstream(brokers=5)
        def test_one_broker(millstream): pass
        @pytest.mark.millstream(process=True)
        def test_cluster(millstream_cluster): pass
        @pytest.mark.millstream({"num.partitions": 3})
        def test_no_name(millstream): pass
        @pytest.mark.millstream(brokers=1, process=False)
        def test_both(millstream, millstream_cluster): assert len(millstream_cluster.brokers) == 1
        """
    )
    result = pytester.runpytest_inprocess(
        "-p", "millstream.testing.plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1, errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "*no argument 'setings'; `millstream` takes settings and process",
            "*argument 'brokers' of the marker `millstream` is only for the fixture `millstream_cluster`; *",
            "*argument 'process' of the marker `millstream` is only for the fixture `millstream`; `millstream_cluster` takes settings and brokers",
            "*takes keyword arguments*",
        ]
    )


def run_plugin(pytester: pytest.Pytester, *more: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        "-p", "millstream.testing.plugin", "-p", "no:cacheprovider", *more
    )


def test_module_and_session_brokers_are_started_once_for_all_their_tests(
    pytester: pytest.Pytester,
) -> None:
    module = """
        import pytest
        from addresses import modules, sessions
        pytestmark = pytest.mark.millstream(settings={"num.partitions": 3})
        @pytest.mark.parametrize("number", range(2))
        def test_shared(millstream_module, millstream_session, number):
            modules.add(millstream_module.bootstrap)
            sessions.add(millstream_session.bootstrap)
            millstream_module.produce(f"orders-{number}", [b"1"])
            millstream_session.produce(f"{__name__}-{number}", [b"1"])
            assert len(millstream_module.end_offsets(f"orders-{number}")) == 3
            assert len(millstream_session.end_offsets(f"{__name__}-{number}")) == 2
        def test_fresh(millstream, millstream_module):
            assert list(millstream.admin.topics.names()) == []
            assert sorted(millstream_module.admin.topics.names()) == ["orders-0", "orders-1"]
        """
    pytester.makepyfile(
        addresses="modules, sessions = set(), set()",
        test_a=module,
        test_b=module,
        test_c="""
        from addresses import modules, sessions
        def test_started_once(millstream_session):
            assert len(modules) == 2 and sessions == {millstream_session.bootstrap}
            assert len(list(millstream_session.admin.topics.names())) == 4
        """,
        conftest="""
        import pytest
        @pytest.fixture(scope="session")
        def millstream_options():
            return {"settings": {"num.partitions": 2}}
        """,
    )
    run_plugin(pytester).assert_outcomes(passed=7)


def test_module_and_session_clusters_are_shared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.millstream(brokers=2)
        @pytest.fixture(scope="session")
        def millstream_options():
            return {"brokers": 1}
        seen = []
        @pytest.mark.parametrize("number", range(2))
        def test_shared(millstream_cluster_module, millstream_cluster_session, number):
            assert len(millstream_cluster_module.brokers) == 2
            assert len(millstream_cluster_session.brokers) == 1
            seen.append((millstream_cluster_module, millstream_cluster_session))
        def test_once():
            assert seen[0] == seen[1]
        """
    )
    run_plugin(pytester).assert_outcomes(passed=3)


def test_shared_brokers_end_with_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_address(millstream_session, millstream_module):
            open("addresses", "w").write(f"{millstream_session.bootstrap} {millstream_module.bootstrap}")
        """
    )
    run_plugin(pytester).assert_outcomes(passed=1)
    for address in (pytester.path / "addresses").read_text().split():
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=30)


def test_each_xdist_worker_has_its_own_session_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("number", range(6))
        def test_shared(millstream_session, worker_id, number):
            millstream_session.produce(worker_id, [b"1"])
            assert list(millstream_session.admin.topics.names()) == [worker_id]
        """
    )
    run_plugin(pytester, "-n", "2").assert_outcomes(passed=6)


def test_options_that_shared_brokers_would_ignore_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_marked="""
        import pytest
        @pytest.mark.millstream(settings={"num.partitions": 3})
        def test_session(millstream_session): pass
        @pytest.mark.millstream(settings={"num.partitions": 3})
        class TestModule:
            def test_module(self, millstream_module): pass
        @pytest.mark.millstream(settings={"num.partitions": 3})
        def test_both(millstream, millstream_session): pass
        """,
        test_typo="""
        import pytest
        pytestmark = pytest.mark.millstream(setings={"num.partitions": 3})
        def test_typo(millstream_module): pass
        """,
        test_wrong_options="""
        import pytest
        @pytest.fixture(scope="session")
        def millstream_options(): return {"partitions": 3}
        def test_options(millstream_cluster_session): pass
        """,
    )
    result = run_plugin(pytester)
    result.assert_outcomes(passed=1, errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "*of a test cannot configure `millstream_session`, which other tests share; *",
            "*of a test cannot configure `millstream_module`, which other tests share; *",
            "*no argument 'setings'; `millstream_module` takes settings and process",
            "*`millstream_options` has an unknown option 'partitions'; use settings, process or brokers",
        ]
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends a child with its parent (PDEATHSIG)"
)
def test_nothing_outlives_a_test_process_that_is_killed() -> None:
    program = """
import threading, time
from millstream import testing
from millstream.broker.temporary_data import _sweep_once
with testing.broker(process=True) as kafka:
    restart = threading.Thread(target=kafka.restart)  # a thread that ends before the process does
    restart.start()
    restart.join()
    print(kafka.process.pid, kafka.process.directory.parent, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as tests:
        try:
            assert tests.stdout is not None
            pid, directory = tests.stdout.readline().split()
            assert is_broker(int(pid))  # also after the thread that restarted it is gone
        finally:
            tests.kill()
    wait_until(lambda: not is_broker(int(pid)), "the broker has ended")
    assert Path(directory).exists()
    _sweep_once.cache_clear()
    with testing.broker() as kafka:
        assert not Path(directory).exists()
        assert Path(kafka.broker.settings["log.dirs"]).exists()


def test_a_directory_that_is_still_written_to_is_left_to_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "millstream-test-left"
    (left / "data").mkdir(parents=True)
    (left / ".owner").touch()
    with monkeypatch.context() as patch:
        # A broker that is being ended makes a file behind the one that removes them.
        patch.setattr(shutil, "rmtree", lambda directory, ignore_errors: None)
        _sweep_once.cache_clear()
        _sweep_once(tmp_path)
    assert (left / ".owner").exists()
    _sweep_once.cache_clear()
    _sweep_once(tmp_path)
    assert not left.exists()


def is_broker(pid: int) -> bool:
    try:
        return b"millstream" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_no_module_hides_what_the_package_offers() -> None:
    modules = {one.name for one in pkgutil.iter_modules(testing.__path__)}
    assert not modules & set(dir(testing))

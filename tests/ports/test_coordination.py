"""What every coordination service of ours promises, told as stories that run in each world
(``coordination_worlds``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.ports.coordination import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Put,
    SessionState,
    TooLarge,
    Write,
    multi_bytes,
    sliced,
)
from support.ports.coordination_worlds import EmbeddedWorld, SimulatedWorld, World, ZooKeeperWorld

# name -> how to make the world, given the request of the fixture; whoever has one more adds it here
WORLDS: dict[str, Callable[[pytest.FixtureRequest, Path], World]] = {
    "embedded": lambda request, directory: EmbeddedWorld(directory),
    "simulated": lambda request, directory: SimulatedWorld(),
    "zookeeper": lambda request, directory: ZooKeeperWorld(request.getfixturevalue("zookeeper")),
}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return WORLDS[request.param](request, tmp_path)


@pytest.fixture
def shared(world: World) -> World:
    """A world with several clients and sessions that can end."""
    if not world.several:
        pytest.skip("one client, and a session that never ends")
    return world


Story = Callable[[Any], Awaitable[None]]


def data(nodes: dict[str, Node]) -> dict[str, bytes]:
    """What was written; nodes that are there only as parents have nothing."""
    return {path: node.data for path, node in nodes.items() if node.data}


# ---- nodes ----


def test_a_new_tree_is_empty(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        assert tree.session is SessionState.CONNECTED
        assert await tree.load() == {}
        assert await tree.get("/a") is None
        assert await tree.children("/a") == {} == await tree.children("/")

    world.run(story)


def test_what_was_written_is_read_and_parents_appear_by_themselves(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        await tree.multi([Put("/a/b/c", b'{"x":1}'), Create("/a/b/d", b"\xff\x00"), Put("/e", b"")])
        loaded = await tree.load()
        assert set(loaded) == {"/a", "/a/b", "/a/b/c", "/a/b/d", "/e"}
        assert data(loaded) == {"/a/b/c": b'{"x":1}', "/a/b/d": b"\xff\x00"}
        assert all(node.version == 0 for node in loaded.values())
        assert await tree.get("/a/b/c") == loaded["/a/b/c"] == (await tree.children("/a/b"))["c"]
        assert set(await tree.children("/a/b")) == {"c", "d"}
        assert set(await tree.children("/")) == {"a", "e"}
        assert await tree.children("/e") == {} == await tree.children("/nowhere")

    world.run(story)


def test_versions_count_the_changes_of_a_node_since_it_was_made(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()

        async def version(path: str) -> int | None:
            node = await tree.get(path)
            return node and node.version

        await tree.multi([Put("/a/b", b"1")])
        assert (await version("/a"), await version("/a/b")) == (0, 0)
        await tree.multi([Put("/a/b", b"2"), Put("/a/b", b"2")])
        await tree.multi([Put("/a", b"parents can be written as well")])
        assert (await version("/a"), await version("/a/b")) == (1, 2)
        await tree.multi([Delete("/a/b")])
        await tree.multi([Put("/a/b", b"3")])
        assert await version("/a/b") == 0

    world.run(story)


@pytest.mark.parametrize(
    "refused, error",
    [
        ([Create("/a", b"2")], NodeExists),
        ([Create("/p", b"exists as a parent")], NodeExists),
        ([Create("/new", b"1"), Create("/new", b"2")], NodeExists),
        ([Put("/new/child", b"1"), Create("/new", b"2")], NodeExists),
        ([Check("/none", 0)], NoNode),
        ([Check("/none", ANY_VERSION)], NoNode),
        ([Check("/a", 0)], BadVersion),
        ([Check("/a", 2)], BadVersion),
    ],
)
def test_a_multi_that_is_refused_changes_nothing(
    world: World, refused: list[Write], error: type[CoordinationError]
) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        await tree.multi([Put("/a", b"0"), Put("/p/q", b"0"), Put("/d/e", b"0")])
        await tree.multi([Put("/a", b"1")])
        before = await tree.load()
        for writes in (
            [Put("/x/y", b""), Put("/a", b"z"), Delete("/d"), *refused],
            [*refused, Put("/x/y", b""), Delete("/d")],
        ):
            with pytest.raises(error) as caught:
                await tree.multi(writes)
            assert type(caught.value) is error
            assert refused[-1].path in str(caught.value)
        assert await tree.load() == before

    world.run(story)


def test_checks_let_pass_what_has_the_version_as_the_multi_begins(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        await tree.multi([Put("/epoch", b"1")])
        await tree.multi([Check("/epoch", 0), Put("/epoch", b"2"), Put("/n", b"1")])
        await tree.multi([Put("/epoch", b"3"), Check("/epoch", 1), Check("/n", ANY_VERSION)])
        await tree.multi([Check("/epoch", 2)])
        assert data(await tree.load()) == {"/epoch": b"3", "/n": b"1"}

    world.run(story)


def test_deletion_takes_what_is_below_and_nothing_else(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        await tree.multi([Put(path, b"1") for path in ("/a", "/a/b", "/a/b/c/d", "/ab", "/a-b/c")])
        await tree.multi([Delete("/a"), Delete("/nowhere"), Delete("/no/where")])
        assert data(await tree.load()) == {"/ab": b"1", "/a-b/c": b"1"}
        await tree.multi([Delete("/a")])
        await tree.multi([])

    world.run(story)


def test_a_write_sees_those_before_it_in_the_same_multi(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        await tree.multi([Put("/a/old", b"1"), Put("/b/c", b"1")])
        await tree.multi(
            [Put("/a/new", b"2"), Delete("/a"), Create("/a/x", b"3"), Put("/a/x", b"4")]
        )
        await tree.multi([Delete("/b/c"), Create("/b/c", b"again"), Put("/d", b"1"), Delete("/d")])
        loaded = await tree.load()
        assert data(loaded) == {"/a/x": b"4", "/b/c": b"again"}
        assert (loaded["/a/x"].version, loaded["/b/c"].version) == (1, 0)
        assert set(loaded) == {"/a", "/a/x", "/b", "/b/c"}

    world.run(story)


def test_a_node_made_again_tells_that_it_is_another_one(shared: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        seen = []
        for _ in range(3):
            await tree.multi([Delete("/a"), Create("/a", b"1", ephemeral=True)])
            await tree.multi([Put("/a", b"2")])
            node = await tree.get("/a")
            assert node is not None
            seen.append(node.created)
        assert seen == sorted(set(seen))

    shared.run(story)


def test_many_nodes_are_loaded_and_deleted(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        wanted = {
            f"/t/{topic}/p/{part}/state": b"%d" % part for topic in range(30) for part in range(20)
        }
        for some in sliced([], ([Put(path, value)] for path, value in wanted.items())):
            await tree.multi(some)
        assert data(await tree.load()) == wanted
        await tree.multi([Delete(f"/t/{topic}") for topic in range(29)])
        assert set(await tree.children("/t")) == {"29"}

    world.run(story)


# ---- size ----


def test_a_multi_beyond_the_limit_is_refused_and_does_no_harm(shared: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        states: list[SessionState] = []
        tree.on_session(states.append)
        with pytest.raises(TooLarge):
            await tree.multi([Put(f"/n{n}", b"x" * 300_000) for n in range(4)])
        assert await tree.load() == {} and states == []
        for some in sliced([], ([Put(f"/n{n}", b"x" * 300_000)] for n in range(4))):
            await tree.multi(some)
        assert len(await tree.load()) == 4

    shared.run(story)


def test_slices_keep_groups_whole_and_begin_with_the_head() -> None:
    head = [Check("/epoch", 3)]
    groups: list[list[Write]] = [[Put(f"/{n}", b"x" * 100), Delete(f"/{n}/y")] for n in range(10)]
    most = multi_bytes(head) + 3 * multi_bytes(groups[0])
    made = list(sliced(head, groups, max_bytes=most))
    assert all(one[0] == head[0] for one in made)
    assert [write for one in made for write in one[1:]] == [
        write for group in groups for write in group
    ]
    assert [len(one) for one in made] == [7, 7, 7, 3]
    assert list(sliced(head, [])) == []
    assert [len(one) for one in sliced(head, groups, max_bytes=1)] == [3] * 10


# ---- watches ----


class Watcher:
    """Counts the calls, and waits for one after a change."""

    def __init__(self, world: World, tree: Coordination, path: str) -> None:
        self.calls = 0
        self._world = world
        self.cancel = tree.watch(path, self._called)

    def _called(self) -> None:
        self.calls += 1

    async def settle(self) -> int:
        """The number of calls when no more come: those that a new watch may make for nothing."""
        seen = -1
        while seen != self.calls:
            seen = self.calls
            await asyncio.sleep(0.2)
        return seen

    async def told_of(self, change: Awaitable[None], what: str) -> None:
        before = await self.settle()
        await change
        await self._world.until(lambda: self.calls > before, f"to be told of {what}")


def test_a_watch_tells_what_happens_to_the_node_and_to_those_directly_below(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        watcher = Watcher(world, tree, "/a")
        await watcher.told_of(tree.multi([Put("/a", b"1")]), "its creation")
        await watcher.told_of(tree.multi([Put("/a", b"2")]), "its change")
        await watcher.told_of(tree.multi([Put("/a/x", b"1")]), "a new child")
        await watcher.told_of(tree.multi([Create("/a/y", b"1", ephemeral=True)]), "a second child")
        await watcher.told_of(tree.multi([Delete("/a/x")]), "the end of a child")
        await watcher.told_of(
            tree.multi([Delete("/a/y"), Create("/a/y", b"2", ephemeral=True)]), "a child made again"
        )
        await watcher.told_of(tree.multi([Delete("/a")]), "its end")
        await watcher.told_of(tree.multi([Put("/a/x/deep", b"1")]), "its creation as a parent")

    world.run(story)


def test_a_watch_that_is_cancelled_tells_nothing_and_others_go_on(world: World) -> None:
    async def story(world: World) -> None:
        tree = await world.client()
        ended, other = Watcher(world, tree, "/a"), Watcher(world, tree, "/a")
        await other.told_of(tree.multi([Put("/a", b"1")]), "a change")
        before = await ended.settle()
        assert before > 0
        ended.cancel()
        ended.cancel()
        await other.told_of(tree.multi([Put("/a", b"2")]), "a change after another's end")
        assert ended.calls == before

    world.run(story)


def test_whoever_reads_when_told_ends_with_what_is_there(world: World) -> None:
    """However the changes and the calls fall together, the last call comes after
    the last change.
    """

    async def story(world: World) -> None:
        tree = await world.client()
        seen: list[bytes] = []
        reads: set[asyncio.Task[None]] = set()

        async def read() -> None:
            node = await tree.get("/a")
            seen.append(node.data if node else b"")

        def called() -> None:
            task = asyncio.ensure_future(read())
            reads.add(task)
            task.add_done_callback(reads.discard)

        tree.watch("/a", called)
        for n in range(100):
            await tree.multi([Put("/a", b"%d" % n)])
        await world.until(lambda: seen and seen[-1] == b"99", "the last value to be seen")
        await asyncio.gather(*reads)

    world.run(story)


# ---- several clients ----


def test_of_many_that_create_one_wins(shared: World) -> None:
    async def story(world: World) -> None:
        trees = [await world.client() for _ in range(3)]
        judged = 0
        for n in range(50):
            writes = [[Create(f"/race/{n}", b"%d" % number, ephemeral=True)] for number in range(3)]
            ends = await asyncio.gather(
                *(tree.multi(one) for tree, one in zip(trees, writes, strict=True)),
                return_exceptions=True,
            )
            if any(isinstance(end, ConnectionLost) for end in ends):
                continue  # on a busy machine, and then nobody can tell what came of it
            judged += 1
            if judged > 10:
                break
            assert sorted(type(end).__name__ for end in ends) == [
                "NodeExists",
                "NodeExists",
                "NoneType",
            ]
            node = await trees[0].get(f"/race/{n}")
            assert node is not None and ends[int(node.data)] is None
        assert judged > 10

    shared.run(story)


def test_changes_that_check_versions_lose_nothing(shared: World) -> None:
    async def story(world: World) -> None:
        trees = [await world.client() for _ in range(3)]
        await trees[0].multi([Put("/counter", b"0")])

        async def count(tree: Coordination, times: int) -> None:
            while times:
                node = await tree.get("/counter")
                assert node is not None
                try:
                    await tree.multi(
                        [
                            Check("/counter", node.version),
                            Put("/counter", b"%d" % (int(node.data) + 1)),
                        ]
                    )
                    times -= 1
                except BadVersion:
                    pass

        await asyncio.gather(*(count(tree, 10) for tree in trees))
        node = await trees[0].get("/counter")
        assert node == Node(b"30", 30, node.created if node else 0)

    shared.run(story)


def test_puts_and_deletes_of_several_clients_do_not_trip_over_each_other(shared: World) -> None:
    """Each sees the tree as it was a moment ago; none is told of that."""

    async def story(world: World) -> None:
        trees = [await world.client() for _ in range(3)]

        async def churn(tree: Coordination, number: int) -> None:
            for n in range(15):
                await tree.multi([Put(f"/a/{n % 3}/{number}/x", b"1"), Put("/a/b", b"2")])
                await tree.multi([Delete(f"/a/{n % 3}")])

        await asyncio.gather(*(churn(tree, number) for number, tree in enumerate(trees)))
        for tree in trees:
            await tree.multi([Put("/last", b"")])
        assert data(await trees[0].load()) == {"/a/b": b"2"}

    shared.run(story)


def test_ephemeral_nodes_go_with_the_client_and_the_others_are_told(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        await mine.multi([Create("/ids/1", b"me", ephemeral=True), Put("/ids/2", b"stays")])
        watcher = Watcher(world, other, "/ids")
        assert set(await other.children("/ids")) == {"1", "2"}
        await watcher.told_of(mine.close(), "the end of the client")
        assert set(await other.children("/ids")) == {"2"}
        await mine.close()
        with pytest.raises(ConnectionLost):
            await mine.get("/ids")

    shared.run(story)


def test_a_change_by_another_client_is_told(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        node, below = Watcher(world, mine, "/a/b"), Watcher(world, mine, "/a")
        await below.told_of(other.multi([Put("/a/b", b"1")]), "a child made by another")
        await node.told_of(other.multi([Put("/a/b", b"2")]), "a change made by another")
        await node.told_of(other.multi([Delete("/a")]), "a deletion by another")

    shared.run(story)


# ---- connections and sessions ----


class States:
    """What a client was told of its session."""

    def __init__(self, tree: Coordination) -> None:
        self.seen: list[SessionState] = []
        tree.on_session(self.seen.append)

    def back(self) -> bool:
        return self.seen[-1:] == [SessionState.CONNECTED]


def test_a_broken_connection_keeps_the_session(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        states = States(mine)
        await mine.multi([Create("/me", b"1", ephemeral=True)])
        made = await other.get("/me")
        for _ in range(3):
            states.seen.clear()
            await world.break_connection(mine)
            await world.until(states.back, "the connection to be back")
            assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert mine.session is SessionState.CONNECTED
        assert await other.get("/me") == made == await mine.get("/me")

    shared.run(story)


def test_watches_call_after_every_reconnect_and_still_tell_changes(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        await mine.multi([Put("/a", b"1")])
        states = States(mine)
        watcher = Watcher(world, mine, "/a")
        for n in range(3):
            await watcher.told_of(world.break_connection(mine), "the reconnect")
            await world.until(states.back, "the connection to be back")
            await watcher.told_of(other.multi([Put("/a", b"%d" % n)]), "a change after it")
            await watcher.told_of(other.multi([Put(f"/a/{n}", b"")]), "a child after it")

    shared.run(story)


def test_what_changed_while_away_is_told_when_back(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        watcher = Watcher(world, mine, "/a")
        await watcher.settle()
        await world.leave(mine)
        assert mine.session is SessionState.SUSPENDED
        with pytest.raises(ConnectionLost):
            await mine.get("/a")
        with pytest.raises(ConnectionLost):
            await mine.multi([Put("/mine", b"1")])
        await other.multi([Put("/a", b"meanwhile")])
        before = watcher.calls
        await world.back(mine)
        await world.until(lambda: watcher.calls > before, "the watch to call")
        node = await mine.get("/a")
        assert node is not None and node.data == b"meanwhile"
        assert await mine.get("/mine") is None

    shared.run(story)


def test_an_expired_session_is_told_and_followed_by_a_new_one(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        await mine.multi([Create("/ids/1", b"first", ephemeral=True), Put("/stays", b"1")])
        states = States(mine)
        watcher = Watcher(world, mine, "/ids")
        before = await watcher.settle()
        await world.expire(mine)
        await world.until(states.back, "a new session")
        assert states.seen == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
        await world.until(lambda: watcher.calls > before, "the watch to call in the new session")
        assert await mine.get("/ids/1") is None
        await mine.multi([Create("/ids/1", b"second", ephemeral=True)])
        await watcher.told_of(other.multi([Put("/ids/2", b"")]), "a change in the new session")
        assert data(await other.load()) == {"/ids/1": b"second", "/stays": b"1"}

    shared.run(story)


def test_a_lost_answer_leaves_the_outcome_open_until_it_is_read(shared: World) -> None:
    async def story(world: World) -> None:
        mine, other = await world.client(), await world.client()
        states = States(mine)
        await mine.multi([Put("/a", b"0")])

        async def applied() -> bool:
            node = await other.get("/a")
            return node is not None and node.version == 1

        error = await world.lose_answer(
            mine, mine.multi([Check("/a", 0), Put("/a", b"1")]), applied
        )
        assert isinstance(error, ConnectionLost)
        await world.until(states.back, "the connection to be back")
        node = await mine.get("/a")
        assert node is not None and (node.data, node.version) == (b"1", 1)

    shared.run(story)

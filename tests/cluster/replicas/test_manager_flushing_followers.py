"""A flush on a follower commits nothing: its leader sets its high watermark."""

from __future__ import annotations

import asyncio

from cluster.replicas.test_manager_elected_while_truncating import HERE, OTHER, World


def test_a_flush_does_not_move_the_high_watermark_of_a_follower() -> None:
    """Even if the leader is the only ISR member.

    The records here may be the tail of a deposed leader. Consumers that read from followers got
    them.
    """

    async def story() -> None:
        world = World()
        await world.led()
        await world.state(OTHER, 2, isr=(OTHER,))
        running = asyncio.create_task(world.housekeeping.run())
        await asyncio.sleep(0)
        try:
            await world.housekeeping.flush(world.log)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert world.log.recovery_point == 10
        assert world.log.high_watermark == 3
        await world.state(HERE, 3, isr=(HERE,))
        assert world.log.high_watermark == 10

    asyncio.run(story())

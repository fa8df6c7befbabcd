import asyncio

import pytest

from ms_recover.worlds import Security, WorldManager
from tests.support.ports import free_port


@pytest.fixture
def port():
    return free_port


@pytest.fixture
def together(port):
    """Run ``work(manager, rank)`` on all members of a world "w", each with its own manager, in one event loop."""

    def run(work, size=2, security=(), limit=120, **options):
        async def main():
            at = port()
            securities = [*security, *[Security()] * (size - len(security))]

            async def member(rank):
                async with WorldManager(security=securities[rank], **options) as manager:
                    await manager.initialize_world("w", rank, size, port=at, timeout=60)
                    return await work(manager, rank)

            done = await asyncio.wait_for(asyncio.gather(*map(member, range(size))), limit)
            assert len(asyncio.all_tasks()) == 1
            return done

        return asyncio.run(main())

    return run

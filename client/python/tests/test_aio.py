"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

import tilesim
from kernels import copy, copy_launch, endless
from tilesim import Candidate, Launch, Status, aio


def run(body: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine."""
    asyncio.run(asyncio.wait_for(body, 100))


async def eventually_idle(client: aio.Client) -> None:
    """Waits until nothing runs."""
    end = time.monotonic() + 20
    while (await client.info()).running:
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.02)


def test_calls_run_side_by_side_and_agree_with_the_sync_client(client: tilesim.Client) -> None:
    async def body() -> None:
        async with aio.Client(machine="tpuv3") as async_client:
            launches = [copy_launch(2**n) for n in range(5, 11)]
            results = await asyncio.gather(*(async_client.simulate(launch) for launch in launches))
            assert [r.report for r in results] == [client.simulate(launch).report for launch in launches]
            assert await async_client.list_machines() == client.list_machines()
            info = await async_client.put_trace(copy(64))
            assert info == client.describe_trace(info.digest) == await async_client.describe_trace(info.digest)
            assert await async_client.get_trace(info.digest) == client.get_trace(info.digest)
            assert info.digest in {t.digest for t in await async_client.list_traces()}
            assert await async_client.missing_traces([info.digest]) == ()
            assert await async_client.describe_machine() == client.describe_machine()
            assert await async_client.check_machine("tpuv3") == client.check_machine("tpuv3")

    run(body())


def test_rank_and_replay(client: tilesim.Client) -> None:
    async def body() -> None:
        candidates = [Candidate(copy_launch(2**n), str(n)) for n in range(5, 11)]
        async with aio.Client(machine="tpuv3") as async_client:
            ranking = await async_client.rank(candidates, progress=False)
            assert ranking.ranked == client.rank(candidates, progress=False).ranked
            async with await async_client.rank_stream([Candidate(endless()), Candidate(copy_launch(64))]) as outcomes:
                async for outcome in outcomes:
                    assert (outcome.index, outcome.status) == (1, Status.OK)
                    break
            await eventually_idle(async_client)
            replayed = await async_client.replay([copy_launch(64), Launch(copy(64), [1, 1])], progress=False)
            assert replayed[0].result is not None and replayed[1].problem is not None

    run(body())


def test_cancelling_a_task_ends_the_work() -> None:
    async def body() -> None:
        async with aio.Client(machine="tpuv3") as client:
            before = (await client.info()).counters.cancelled
            tasks = [
                asyncio.create_task(client.simulate(endless())),
                asyncio.create_task(client.rank([Candidate(endless())], progress=False)),
            ]
            while (await client.info()).running == 0:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await eventually_idle(client)
            assert (await client.info()).counters.cancelled > before

    run(body())


def test_errors() -> None:
    async def body() -> None:
        async with aio.Client(machine="tpuv3") as client:
            with pytest.raises(tilesim.DeadlineExceeded):
                await client.simulate(endless(), timeout=0.3)
            with pytest.raises(tilesim.DeadlineExceeded):
                await client.rank([Candidate(endless())], timeout=0.3, progress=False)
            with pytest.raises(tilesim.InvalidInput) as error:
                await client.simulate(Launch(copy(64), [1, 1]))
            assert (error.value.code, error.value.path) == ("launch.axis_count", "launch.grid")
            with pytest.raises(tilesim.Unimplemented):
                await client.list_jobs()
            with pytest.raises(tilesim.Unimplemented):
                async for _ in await client.watch_job("x"):
                    pass
        async with aio.Client("127.0.0.1:1") as nobody:
            with pytest.raises(tilesim.Unavailable) as unreachable:
                await nobody.info()
            assert unreachable.value.code == "client.unreachable"

    run(body())

"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import grpc.aio

from ._connection import CONNECT_SECONDS, Deadline, RankState, Settings, stubs
from ._operations import Call, DescribedMachine, MachineList, Operation, Pause, job_event
from ._progress import Bar
from .errors import TilesimError, from_rpc
from .launches import Candidate, Launch, MachineLike, Replay, TraceLike
from .results import (
    Job,
    MachineInfo,
    Outcome,
    Ranking,
    ReplayOutcome,
    Result,
    ServerInfo,
    StoredObject,
    TraceInfo,
)
from .v1 import server_pb2, simulation_pb2, traces_pb2

T = TypeVar("T")


class Stream(Generic[T]):
    """Answers as they come. Leaving its `async with` block, or `cancel`, ends the work on the server."""

    def __init__(self, call: Any, take: Callable[[Any], T | None]) -> None:
        self._call = call
        self._responses = aiter(call)
        self._take = take

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            try:
                response = await anext(self._responses)
            except grpc.RpcError as error:
                raise from_rpc(error) from None
            taken = self._take(response)
            if taken is not None:
                return taken

    def cancel(self) -> None:
        """Ends the work."""
        self._call.cancel()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class RankStream(Stream[Outcome]):
    """Outcomes of a ranking as they come."""

    def __init__(self, call: Any, state: RankState) -> None:
        super().__init__(call, state.take)
        self._state = state

    async def __aenter__(self) -> RankStream:
        return self

    async def ranking(self) -> Ranking:
        """The finished ranking; reads the outcomes that are still to come."""
        async for _ in self:
            pass
        return self._state.ranking()


class Client:
    """A connection to a tilesim server, for one event loop. Its calls are those of `tilesim.Client`, awaited.

    Cancelling a task that awaits a call ends the work on the server.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        machine: MachineLike | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._settings = Settings(address, machine, tenant, timeout)
        self._operations = self._settings.operations
        self._lock = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._stubs: dict[str, Any] = {}

    async def close(self) -> None:
        """Ends all calls of this client. The local daemon goes on. A later call connects again."""
        if self._channel is not None:
            self._settings.check_process()
            async with self._lock:
                channel, self._channel = self._channel, None
            if channel is not None:
                await channel.close(None)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Facts about the server."""
        return await self._run(self._operations.info(), timeout)

    async def put_trace(self, trace: TraceLike, *, timeout: float | None = None) -> TraceInfo:
        """Uploads a trace and describes it. Launches do so by themselves, once for each trace."""
        return await self._run(self._operations.put_trace(trace), timeout)

    async def missing_traces(self, digests: Iterable[str], *, timeout: float | None = None) -> tuple[str, ...]:
        """Which of the traces the server does not have."""
        return await self._run(self._operations.missing_traces(digests), timeout)

    async def describe_trace(self, digest: str, *, timeout: float | None = None) -> TraceInfo:
        """Describes a stored trace."""
        return await self._run(self._operations.describe_trace(digest), timeout)

    async def get_trace(self, digest: str, *, timeout: float | None = None) -> str:
        """A stored trace in the text form."""
        request = traces_pb2.GetTraceRequest(digest=digest, encoding=traces_pb2.TRACE_ENCODING_TEXT)
        call = await self._open("Traces", "Get", request, self._deadline(timeout))
        parts: Stream[bytes] = Stream(call, lambda r: r.data)
        return b"".join([part async for part in parts]).decode()

    async def list_traces(self, *, timeout: float | None = None) -> tuple[StoredObject, ...]:
        """All stored traces, ordered by digest."""
        return await self._run(self._operations.list_traces(), timeout)

    async def delete_trace(self, digest: str, *, timeout: float | None = None) -> None:
        """Deletes a stored trace. Results that were computed from it stay."""
        await self._run(self._operations.delete_trace(digest), timeout)

    async def put_machine(self, machine: MachineLike, *, name: str = "", timeout: float | None = None) -> MachineInfo:
        """Stores a machine's description, for example `put_machine(Path("my.yaml"))`."""
        return await self._run(self._operations.put_machine(machine, name), timeout)

    async def list_machines(self, *, timeout: float | None = None) -> MachineList:
        """Presets and stored machines."""
        return await self._run(self._operations.list_machines(), timeout)

    async def describe_machine(
        self, machine: MachineLike | None = None, *, timeout: float | None = None
    ) -> DescribedMachine:
        """Describes a machine: its derived peaks and its whole description."""
        return await self._run(self._operations.describe_machine(machine), timeout)

    async def check_machine(self, machine: MachineLike, *, timeout: float | None = None) -> MachineInfo:
        """Validates a machine without storing it."""
        return await self._run(self._operations.check_machine(machine), timeout)

    async def simulate(
        self, launch: Launch, *, machine: MachineLike | None = None, timeout: float | None = None
    ) -> Result:
        """Simulates one launch. Waits while the server's queue is full."""
        return await self._run(self._operations.simulate(launch, machine), timeout)

    async def rank(
        self,
        candidates: Sequence[Candidate],
        *,
        machine: MachineLike | None = None,
        top_k: int = 0,
        progress: bool | None = None,
        timeout: float | None = None,
    ) -> Ranking:
        """Simulates candidates and orders them by simulated cycles.

        `top_k`: how many of the best are wanted; the rest may end as PRUNED; 0: all. `progress`: show a bar; None:
        if standard error is a terminal.
        """
        stream = await self.rank_stream(candidates, machine=machine, top_k=top_k, timeout=timeout)
        with Bar(len(candidates), "ranking", progress) as bar:
            async with stream as outcomes:
                async for _ in outcomes:
                    bar.advance()
                return await outcomes.ranking()

    async def rank_stream(
        self,
        candidates: Sequence[Candidate],
        *,
        machine: MachineLike | None = None,
        top_k: int = 0,
        timeout: float | None = None,
    ) -> RankStream:
        """The same, with outcomes as they come: `async with await client.rank_stream(...) as outcomes`."""
        deadline = self._deadline(timeout)
        request = await self._drive(self._operations.rank(candidates, machine, top_k), deadline)
        return RankStream(await self._open("Simulation", "Rank", request, deadline), RankState())

    async def replay(
        self,
        launches: Iterable[Launch | Replay],
        *,
        machine: MachineLike | None = None,
        progress: bool | None = None,
        timeout: float | None = None,
    ) -> list[ReplayOutcome]:
        """Simulates a list of launches. What becomes of each is returned, in the order of the list."""
        launches = list(launches)
        outcomes = []
        stream = await self.replay_stream(launches, machine=machine, timeout=timeout)
        with Bar(len(launches), "replaying", progress) as bar:
            async with stream:
                async for outcome in stream:
                    outcomes.append(outcome)
                    bar.advance()
        return sorted(outcomes, key=lambda o: o.index)

    async def replay_stream(
        self,
        launches: Iterable[Launch | Replay],
        *,
        machine: MachineLike | None = None,
        timeout: float | None = None,
    ) -> Stream[ReplayOutcome]:
        """The same, with outcomes as they come, in any order."""
        deadline = self._deadline(timeout)
        requests = await self._drive(self._operations.replay(launches, machine), deadline)
        return Stream(await self._open("Simulation", "Replay", requests, deadline), ReplayOutcome._of)

    async def submit_rank(
        self,
        candidates: Sequence[Candidate],
        *,
        name: str = "",
        machine: MachineLike | None = None,
        top_k: int = 0,
        timeout: float | None = None,
    ) -> Job:
        """Submits a ranking as a job that outlives the connection."""
        return await self._run(self._operations.submit_rank(name, candidates, machine, top_k), timeout)

    async def submit_replay(
        self,
        launches: Iterable[Launch | Replay],
        *,
        name: str = "",
        machine: MachineLike | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Submits a list of launches as a job that outlives the connection."""
        return await self._run(self._operations.submit_replay(name, launches, machine), timeout)

    async def watch_job(
        self, job: str, *, start: int = 0, timeout: float | None = None
    ) -> Stream[Job | ReplayOutcome | Outcome]:
        """News of a job until it ends; outcomes from position `start` on."""
        request = simulation_pb2.WatchJobRequest(id=job, **{"from": start})
        call = await self._open("Simulation", "WatchJob", request, self._deadline(timeout))
        return Stream(call, job_event)

    async def cancel_job(self, job: str, *, timeout: float | None = None) -> Job:
        """Cancels a job."""
        return await self._run(self._operations.cancel_job(job), timeout)

    async def list_jobs(self, *, timeout: float | None = None) -> tuple[Job, ...]:
        """All jobs, the newest first."""
        return await self._run(self._operations.list_jobs(), timeout)

    def _deadline(self, timeout: float | None) -> Deadline:
        return self._settings.deadline(timeout)

    async def _run(self, operation: Operation[T], timeout: float | None) -> T:
        return await self._drive(operation, self._deadline(timeout))

    async def _drive(self, operation: Operation[T], deadline: Deadline) -> T:
        """Makes the calls of an operation."""
        try:
            step = next(operation)
            while True:
                try:
                    answer = await self._perform(step, deadline)
                except TilesimError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, step: Call | Pause, deadline: Deadline) -> Any:
        if isinstance(step, Pause):
            await asyncio.sleep(deadline.at_most(step.seconds))
            return None
        try:
            return await (await self._open(step.service, step.method, step.request, deadline))
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    async def _open(self, service: str, method: str, request: Any, deadline: Deadline) -> Any:
        """Makes a call, to be awaited or iterated."""
        services = await self._services(deadline)
        call = getattr(services[service], method)
        return call(request, timeout=deadline.left(), metadata=self._settings.metadata)

    async def _services(self, deadline: Deadline) -> dict[str, Any]:
        """The services; connects when there is no connection."""
        self._settings.check_process()
        async with self._lock:
            if self._channel is None:
                # A daemon takes a moment to start.
                target, options = await asyncio.to_thread(self._settings.target)
                channel = grpc.aio.insecure_channel(target, options=options)
                services = stubs(channel)
                try:
                    # The first call waits for the connection.
                    await services["Server"].Info(
                        server_pb2.ServerInfoRequest(), timeout=deadline.at_most(CONNECT_SECONDS), wait_for_ready=True
                    )
                except grpc.RpcError as error:
                    await channel.close(None)
                    deadline.left()
                    raise self._settings.not_connected(from_rpc(error)) from None
                self._channel, self._stubs = channel, services
            return self._stubs

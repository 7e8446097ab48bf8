"""The client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

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

if TYPE_CHECKING:
    from .triton.prune import AllFailed, Heuristics, Prune, TraceFor

T = TypeVar("T")


class Stream(Generic[T]):
    """Answers as they come. Leaving its `with` block, or `cancel`, ends the work on the server."""

    def __init__(self, call: Any, take: Callable[[Any], T | None]) -> None:
        self._call = call
        self._take = take

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                response = next(self._call)
            except grpc.RpcError as error:
                raise from_rpc(error) from None
            taken = self._take(response)
            if taken is not None:
                return taken

    def cancel(self) -> None:
        """Ends the work. May be called from any thread; whoever iterates gets `Cancelled`."""
        self._call.cancel()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class RankStream(Stream[Outcome]):
    """Outcomes of a ranking as they come."""

    def __init__(self, call: Any, state: RankState) -> None:
        super().__init__(call, state.take)
        self._state = state

    def __enter__(self) -> RankStream:
        return self

    def ranking(self) -> Ranking:
        """The finished ranking; reads the outcomes that are still to come."""
        for _ in self:
            pass
        return self._state.ranking()


class Client:
    """A connection to a tilesim server. Threads may share it.

    Without an address, and without one in `TILESIM_SERVER`, a local daemon serves: one for all clients of the process,
    started with the first call and stopped when the process ends.

    A client belongs to the process that made it: in a forked child its calls raise `ForkedClient`.

    `machine`: what to run on when a call names nothing else. `tenant`: on whose behalf (default: `TILESIM_TENANT`).
    `timeout`: seconds that a call may take, uploads included, unless it says otherwise; None: as long as it takes.
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
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stubs: dict[str, Any] = {}

    def close(self) -> None:
        """Ends all calls of this client. The local daemon goes on. A later call connects again."""
        if self._channel is not None:
            self._settings.check_process()
            with self._lock:
                channel, self._channel = self._channel, None
            if channel is not None:
                channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Facts about the server."""
        return self._run(self._operations.info(), timeout)

    def put_trace(self, trace: TraceLike, *, timeout: float | None = None) -> TraceInfo:
        """Uploads a trace and describes it. Launches do so by themselves, once for each trace."""
        return self._run(self._operations.put_trace(trace), timeout)

    def missing_traces(self, digests: Iterable[str], *, timeout: float | None = None) -> tuple[str, ...]:
        """Which of the traces the server does not have."""
        return self._run(self._operations.missing_traces(digests), timeout)

    def describe_trace(self, digest: str, *, timeout: float | None = None) -> TraceInfo:
        """Describes a stored trace."""
        return self._run(self._operations.describe_trace(digest), timeout)

    def get_trace(self, digest: str, *, timeout: float | None = None) -> str:
        """A stored trace in the text form."""
        request = traces_pb2.GetTraceRequest(digest=digest, encoding=traces_pb2.TRACE_ENCODING_TEXT)
        parts: Stream[bytes] = Stream(self._open("Traces", "Get", request, self._deadline(timeout)), lambda r: r.data)
        return b"".join(parts).decode()

    def list_traces(self, *, timeout: float | None = None) -> tuple[StoredObject, ...]:
        """All stored traces, ordered by digest."""
        return self._run(self._operations.list_traces(), timeout)

    def delete_trace(self, digest: str, *, timeout: float | None = None) -> None:
        """Deletes a stored trace. Results that were computed from it stay."""
        self._run(self._operations.delete_trace(digest), timeout)

    def put_machine(self, machine: MachineLike, *, name: str = "", timeout: float | None = None) -> MachineInfo:
        """Stores a machine's description, for example `put_machine(Path("my.yaml"))`."""
        return self._run(self._operations.put_machine(machine, name), timeout)

    def list_machines(self, *, timeout: float | None = None) -> MachineList:
        """Presets and stored machines."""
        return self._run(self._operations.list_machines(), timeout)

    def describe_machine(self, machine: MachineLike | None = None, *, timeout: float | None = None) -> DescribedMachine:
        """Describes a machine: its derived peaks and its whole description."""
        return self._run(self._operations.describe_machine(machine), timeout)

    def check_machine(self, machine: MachineLike, *, timeout: float | None = None) -> MachineInfo:
        """Validates a machine without storing it."""
        return self._run(self._operations.check_machine(machine), timeout)

    def simulate(self, launch: Launch, *, machine: MachineLike | None = None, timeout: float | None = None) -> Result:
        """Simulates one launch. Waits while the server's queue is full."""
        return self._run(self._operations.simulate(launch, machine), timeout)

    def rank(
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
        with (
            self.rank_stream(candidates, machine=machine, top_k=top_k, timeout=timeout) as outcomes,
            Bar(len(candidates), "ranking", progress) as bar,
        ):
            for _ in outcomes:
                bar.advance()
            return outcomes.ranking()

    def rank_stream(
        self,
        candidates: Sequence[Candidate],
        *,
        machine: MachineLike | None = None,
        top_k: int = 0,
        timeout: float | None = None,
    ) -> RankStream:
        """The same, with outcomes as they come."""
        deadline = self._deadline(timeout)
        request = self._drive(self._operations.rank(candidates, machine, top_k), deadline)
        return RankStream(self._open("Simulation", "Rank", request, deadline), RankState())

    def replay(
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
        with (
            self.replay_stream(launches, machine=machine, timeout=timeout) as stream,
            Bar(len(launches), "replaying", progress) as bar,
        ):
            for outcome in stream:
                outcomes.append(outcome)
                bar.advance()
        return sorted(outcomes, key=lambda o: o.index)

    def replay_stream(
        self,
        launches: Iterable[Launch | Replay],
        *,
        machine: MachineLike | None = None,
        timeout: float | None = None,
    ) -> Stream[ReplayOutcome]:
        """The same, with outcomes as they come, in any order."""
        deadline = self._deadline(timeout)
        requests = self._drive(self._operations.replay(launches, machine), deadline)
        return Stream(self._open("Simulation", "Replay", iter(requests), deadline), ReplayOutcome._of)

    def submit_rank(
        self,
        candidates: Sequence[Candidate],
        *,
        name: str = "",
        machine: MachineLike | None = None,
        top_k: int = 0,
        timeout: float | None = None,
    ) -> Job:
        """Submits a ranking as a job that outlives the connection."""
        return self._run(self._operations.submit_rank(name, candidates, machine, top_k), timeout)

    def submit_replay(
        self,
        launches: Iterable[Launch | Replay],
        *,
        name: str = "",
        machine: MachineLike | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Submits a list of launches as a job that outlives the connection."""
        return self._run(self._operations.submit_replay(name, launches, machine), timeout)

    def watch_job(
        self, job: str, *, start: int = 0, timeout: float | None = None
    ) -> Stream[Job | ReplayOutcome | Outcome]:
        """News of a job until it ends; outcomes from position `start` on."""
        request = simulation_pb2.WatchJobRequest(id=job, **{"from": start})
        return Stream(self._open("Simulation", "WatchJob", request, self._deadline(timeout)), job_event)

    def cancel_job(self, job: str, *, timeout: float | None = None) -> Job:
        """Cancels a job."""
        return self._run(self._operations.cancel_job(job), timeout)

    def list_jobs(self, *, timeout: float | None = None) -> tuple[Job, ...]:
        """All jobs, the newest first."""
        return self._run(self._operations.list_jobs(), timeout)

    def prune(
        self,
        trace_for: TraceFor,
        keep: int,
        *,
        machine: MachineLike | None = None,
        heuristics: Heuristics | None = None,
        all_failed: AllFailed = "raise",
        on_ranking: Callable[[Ranking], object] | None = None,
        timeout: float | None = None,
    ) -> Prune:
        """A function for `prune_configs_by={"early_config_prune": ...}` of `triton.autotune`. See `tilesim.triton`."""
        from .triton import Prune

        return Prune(self, trace_for, keep, machine, heuristics, all_failed, on_ranking, timeout)

    def _deadline(self, timeout: float | None) -> Deadline:
        return self._settings.deadline(timeout)

    def _run(self, operation: Operation[T], timeout: float | None) -> T:
        return self._drive(operation, self._deadline(timeout))

    def _drive(self, operation: Operation[T], deadline: Deadline) -> T:
        """Makes the calls of an operation."""
        try:
            step = next(operation)
            while True:
                try:
                    answer = self._perform(step, deadline)
                except TilesimError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, step: Call | Pause, deadline: Deadline) -> Any:
        if isinstance(step, Pause):
            time.sleep(deadline.at_most(step.seconds))
            return None
        try:
            return self._open(step.service, step.method, step.request, deadline)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def _open(self, service: str, method: str, request: Any, deadline: Deadline) -> Any:
        """Makes a call: the answer, or the stream of answers."""
        call = getattr(self._services(deadline)[service], method)
        return call(request, timeout=deadline.left(), metadata=self._settings.metadata)

    def _services(self, deadline: Deadline) -> dict[str, Any]:
        """The services; connects when there is no connection."""
        self._settings.check_process()
        with self._lock:
            if self._channel is None:
                target, options = self._settings.target()
                channel = grpc.insecure_channel(target, options=options)
                services = stubs(channel)
                try:
                    # The first call waits for the connection. gRPC's own watch would leave a thread behind that makes
                    # a fork right afterwards unsafe.
                    services["Server"].Info(
                        server_pb2.ServerInfoRequest(), timeout=deadline.at_most(CONNECT_SECONDS), wait_for_ready=True
                    )
                except grpc.RpcError as error:
                    channel.close()
                    deadline.left()
                    raise self._settings.not_connected(from_rpc(error)) from None
                self._channel, self._stubs = channel, services
            return self._stubs

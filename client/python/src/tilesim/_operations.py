"""What a client does, without saying how calls are made: sync and async clients both drive these generators.

An operation yields calls and pauses, is sent the answers, and returns its result. A failed call is thrown into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from . import _wire, results
from ._convert import convert
from .errors import Exhausted, InvalidInput
from .launches import (
    Candidate,
    Launch,
    Machine,
    MachineLike,
    Replay,
    Trace,
    TraceLike,
    as_machine,
    as_trace,
)
from .v1 import machines_pb2, server_pb2, simulation_pb2, traces_pb2

T = TypeVar("T")

_FULL_RETRIES = 20
"""How often a call is made again while a queue of the server is full."""
_LONGEST_PAUSE = 30.0
"""The longest pause before that, in seconds, whatever the server says."""
_PAGE = 1000
_FIND_AT_ONCE = 10_000
"""Digests of one FindMissing; below any server's limit."""


@dataclass(frozen=True)
class Call:
    """A call to make: the service, its method, and the request or its parts."""

    service: str
    method: str
    request: Any


@dataclass(frozen=True)
class Pause:
    """A pause to make."""

    seconds: float


Operation: TypeAlias = Generator["Call | Pause", Any, T]


@dataclass(frozen=True)
class MachineList:
    """The machines of a server."""

    presets: tuple[results.Preset, ...]
    stored: tuple[results.StoredObject, ...]


@dataclass(frozen=True)
class DescribedMachine:
    """A machine and its whole description."""

    info: results.MachineInfo
    document: str
    """As YAML, defaults and overrides filled in."""


class Operations:
    """The operations of one client. They remember what has been uploaded."""

    def __init__(self, machine: MachineLike | None) -> None:
        self._machine = machine
        self._digests: dict[str, str] = {}

    def machine(self, machine: MachineLike | None) -> Machine:
        """The machine of a call: its own, else the client's."""
        return as_machine(machine if machine is not None else self._machine)

    def info(self) -> Operation[results.ServerInfo]:
        """Facts about the server."""
        answer = yield Call("Server", "Info", server_pb2.ServerInfoRequest())
        return convert(results.ServerInfo, answer)

    def put_trace(self, trace: TraceLike) -> Operation[results.TraceInfo]:
        """Uploads a trace, or describes one that is stored."""
        source = as_trace(trace)
        if isinstance(source, str):
            return (yield from self.describe_trace(source))
        answer = yield from _patient(lambda: Call("Traces", "Upload", _wire.upload(source)))
        self._digests[source.fingerprint] = answer.trace.digest
        return convert(results.TraceInfo, answer.trace)

    def missing_traces(self, digests: Iterable[str]) -> Operation[tuple[str, ...]]:
        """Which of the traces the server does not have."""
        digests, missing = list(digests), []
        for start in range(0, len(digests), _FIND_AT_ONCE):
            request = traces_pb2.FindMissingTracesRequest(digests=digests[start : start + _FIND_AT_ONCE])
            answer = yield Call("Traces", "FindMissing", request)
            missing += answer.missing
        return tuple(missing)

    def describe_trace(self, digest: str) -> Operation[results.TraceInfo]:
        """Describes a stored trace."""
        answer = yield Call("Traces", "Describe", traces_pb2.DescribeTraceRequest(digest=digest))
        return convert(results.TraceInfo, answer.trace)

    def list_traces(self) -> Operation[tuple[results.StoredObject, ...]]:
        """All stored traces, ordered by digest."""
        pages = yield from _pages("Traces", traces_pb2.ListTracesRequest)
        return tuple(convert(results.StoredObject, t) for page in pages for t in page.traces)

    def delete_trace(self, digest: str) -> Operation[None]:
        """Deletes a stored trace."""
        yield Call("Traces", "Delete", traces_pb2.DeleteTraceRequest(digest=digest))

    def put_machine(self, machine: MachineLike, name: str) -> Operation[results.MachineInfo]:
        """Stores a description."""
        source = as_machine(machine)
        if source.document is None or source.overrides:
            raise InvalidInput(
                "only a whole description can be stored",
                code="client.bad_machine",
                path="machine",
                hint="presets are always there; overrides go with each call",
            )
        request = machines_pb2.PutMachineRequest(name=name, document=source.document)
        answer = yield Call("Machines", "Put", request)
        return convert(results.MachineInfo, answer.machine)

    def list_machines(self) -> Operation[MachineList]:
        """Presets and stored machines."""
        pages = yield from _pages("Machines", machines_pb2.ListMachinesRequest)
        return MachineList(
            tuple(convert(results.Preset, p) for page in pages for p in page.presets),
            tuple(convert(results.StoredObject, m) for page in pages for m in page.machines),
        )

    def describe_machine(self, machine: MachineLike | None) -> Operation[DescribedMachine]:
        """Describes a machine."""
        request = machines_pb2.DescribeMachineRequest(machine=_wire.machine(self.machine(machine)))
        answer = yield Call("Machines", "Describe", request)
        return DescribedMachine(convert(results.MachineInfo, answer.machine), answer.document)

    def check_machine(self, machine: MachineLike) -> Operation[results.MachineInfo]:
        """Validates a machine without storing it."""
        request = machines_pb2.CheckMachineRequest(machine=_wire.machine(self.machine(machine)))
        answer = yield Call("Machines", "Check", request)
        return convert(results.MachineInfo, answer.machine)

    def simulate(self, launch: Launch, machine: MachineLike | None) -> Operation[results.Result]:
        """Simulates one launch."""
        on = _wire.machine(self.machine(machine))
        (digest,) = yield from self._stored([launch])
        request = simulation_pb2.SimulateRequest(machine=on, launch=_wire.launch(launch, digest))
        answer = yield from _patient(lambda: Call("Simulation", "Simulate", request))
        return results.Result._of(answer.result)

    def rank(
        self, candidates: Sequence[Candidate], machine: MachineLike | None, top_k: int
    ) -> Operation[simulation_pb2.RankRequest]:
        """The request of a ranking whose traces the server has."""
        on = _wire.machine(self.machine(machine))
        runs = [[run for run, _ in c.weighted] for c in candidates]
        digests = iter((yield from self._stored([run for of in runs for run in of])))
        return simulation_pb2.RankRequest(
            machine=on,
            candidates=[
                _wire.candidate(c, [next(digests) for _ in of]) for c, of in zip(candidates, runs, strict=True)
            ],
            top_k=top_k,
        )

    def replay(
        self, launches: Iterable[Launch | Replay], machine: MachineLike | None
    ) -> Operation[list[simulation_pb2.ReplayRequest]]:
        """The requests of a replay whose traces the server has."""
        entries = [entry if isinstance(entry, Replay) else Replay(entry) for entry in launches]
        digests = yield from self._stored([e.launch for e in entries])
        return [
            simulation_pb2.ReplayRequest(
                key=e.key,
                machine=_wire.machine(self.machine(e.machine if e.machine is not None else machine)),
                launch=_wire.launch(e.launch, digest),
            )
            for e, digest in zip(entries, digests, strict=True)
        ]

    def submit_rank(
        self, name: str, candidates: Sequence[Candidate], machine: MachineLike | None, top_k: int
    ) -> Operation[results.Job]:
        """Submits a ranking as a job."""
        work = yield from self.rank(candidates, machine, top_k)
        return (yield from _submit(simulation_pb2.SubmitJobRequest(name=name, rank=work)))

    def submit_replay(
        self, name: str, launches: Iterable[Launch | Replay], machine: MachineLike | None
    ) -> Operation[results.Job]:
        """Submits a list of launches as a job."""
        requests = yield from self.replay(launches, machine)
        work = simulation_pb2.ReplayList(launches=requests)
        return (yield from _submit(simulation_pb2.SubmitJobRequest(name=name, replay=work)))

    def cancel_job(self, job: str) -> Operation[results.Job]:
        """Cancels a job."""
        answer = yield Call("Simulation", "CancelJob", simulation_pb2.CancelJobRequest(id=job))
        return convert(results.Job, answer.job)

    def list_jobs(self) -> Operation[tuple[results.Job, ...]]:
        """All jobs, the newest first."""
        pages = yield from _pages("Simulation", simulation_pb2.ListJobsRequest, method="ListJobs")
        return tuple(convert(results.Job, j) for page in pages for j in page.jobs)

    def _stored(self, launches: Sequence[Launch]) -> Operation[list[str]]:
        """Digests of the launches' traces, all of which the server has afterwards: each is uploaded once."""
        sources: dict[int, Trace | str] = {}
        # Many launches share one trace object, and a builder writes it anew each time it is asked.
        for launch in launches:
            if id(launch.trace) not in sources:
                sources[id(launch.trace)] = as_trace(launch.trace)
        traces = {t.fingerprint: t for t in sources.values() if isinstance(t, Trace)}
        known = {f: self._digests[f] for f in traces if f in self._digests}
        missing = set((yield from self.missing_traces(known.values()))) if known else set()
        for fingerprint, trace in traces.items():
            if fingerprint not in known or known[fingerprint] in missing:
                yield from self.put_trace(trace)
        found = {i: t if isinstance(t, str) else self._digests[t.fingerprint] for i, t in sources.items()}
        return [found[id(launch.trace)] for launch in launches]


def _submit(request: simulation_pb2.SubmitJobRequest) -> Operation[results.Job]:
    answer = yield Call("Simulation", "SubmitJob", request)
    return convert(results.Job, answer.job)


def _pages(service: str, request: Callable[..., Any], method: str = "List") -> Operation[list[Any]]:
    """All pages of a list."""
    pages: list[Any] = []
    while not pages or pages[-1].next_page_token:
        token = pages[-1].next_page_token if pages else ""
        pages.append((yield Call(service, method, request(page_size=_PAGE, page_token=token))))
    return pages


def _patient(call: Callable[[], Call]) -> Operation[Any]:
    """Makes a call again, after the delay that the server asks for, while its queue is full."""
    for _ in range(_FULL_RETRIES):
        try:
            return (yield call())
        except Exhausted as error:
            if error.retry_after is None:
                raise
            yield Pause(min(error.retry_after, _LONGEST_PAUSE))
    return (yield call())


def rank_part(response: simulation_pb2.RankResponse) -> results.Outcome | simulation_pb2.RankOrder | None:
    """A part of a ranking's answer."""
    which = response.WhichOneof("part")
    if which == "outcome":
        return results.Outcome._of(response.outcome)
    return response.order if which == "order" else None


def job_event(
    response: simulation_pb2.WatchJobResponse,
) -> results.Job | results.ReplayOutcome | results.Outcome | None:
    """News of a job. The order of a ranking is left to `WatchJob`'s reader: it follows from the outcomes."""
    which = response.WhichOneof("event")
    if which == "job":
        return convert(results.Job, response.job)
    if which == "replay":
        return results.ReplayOutcome._of(response.replay)
    part = rank_part(response.rank) if which == "rank" else None
    return part if isinstance(part, results.Outcome) else None

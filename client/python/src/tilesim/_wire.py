"""Requests, as messages. `results` reads the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .errors import Problem
from .launches import Candidate, Launch, Machine, Trace
from .v1 import common_pb2, simulation_pb2, traces_pb2

_CHUNK = 256 << 10
"""Bytes of one part of an upload."""

Digests = Mapping[str, str]
"""Digests of traces by their fingerprint."""


def machine(machine: Machine) -> common_pb2.MachineRef:
    """A machine."""
    overrides = [common_pb2.Override(path=path, value=value) for path, value in machine.overrides]
    return common_pb2.MachineRef(
        preset=machine.preset, digest=machine.digest, document=machine.document, overrides=overrides
    )


def launch(launch: Launch, digest: str) -> simulation_pb2.Launch:
    """A launch of the trace of that digest."""
    return simulation_pb2.Launch(
        trace_digest=digest,
        grid=launch.grid,
        params=launch.params,
        extents={name: simulation_pb2.Extents(extents=e) for name, e in launch.extents.items()},
        placement=launch.placement,
        allow_overlap=launch.allow_overlap,
        options=simulation_pb2.RunOptions(
            cycle_budget=launch.cycle_budget,
            max_work_items=launch.max_work_items,
            max_requests=launch.max_requests,
            allow_cost_mismatch=launch.allow_cost_mismatch,
            registers_per_item=launch.registers_per_item,
            threads_per_item=launch.threads_per_item,
        ),
    )


def candidate(candidate: Candidate, digests: Iterable[str]) -> simulation_pb2.Candidate:
    """A candidate whose launches are of the traces of those digests."""
    return simulation_pb2.Candidate(
        key=candidate.key,
        launches=[
            simulation_pb2.WeightedLaunch(launch=launch(run, digest), weight=weight)
            for (run, weight), digest in zip(candidate.weighted, digests, strict=True)
        ],
        pre_failure=problem(candidate.failure) if candidate.failure is not None else None,
    )


def problem(problem: Problem) -> common_pb2.Problem:
    """A problem."""
    return common_pb2.Problem(code=problem.code, path=problem.path, message=problem.message, hint=problem.hint)


def upload(trace: Trace) -> Iterator[traces_pb2.UploadTraceRequest]:
    """The parts of an upload."""
    yield traces_pb2.UploadTraceRequest(
        header=traces_pb2.UploadTraceHeader(name=trace.name, size_bytes=len(trace.content))
    )
    for start in range(0, len(trace.content), _CHUNK):
        yield traces_pb2.UploadTraceRequest(data=trace.content[start : start + _CHUNK])

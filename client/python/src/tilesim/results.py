"""What the server answers, as frozen dataclasses. Times are core cycles, sizes bytes, unless the name says more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ._convert import WireEnum, convert, enum_name
from .errors import Problem

if TYPE_CHECKING:
    import pandas as pd


class Origin(WireEnum):
    """Where a result came from."""

    UNSPECIFIED = "UNSPECIFIED"
    SIMULATED = "SIMULATED"
    """Simulated for this request."""
    JOINED = "JOINED"
    """Simulated for an equal request that was in flight."""
    CACHED = "CACHED"
    """Read from the result cache."""


class Status(WireEnum):
    """What became of a candidate. Each has exactly one status."""

    UNSPECIFIED = "UNSPECIFIED"
    OK = "OK"
    """Simulated; it has a score."""
    FAILED = "FAILED"
    """It cannot be simulated; it has a problem."""
    OVER_BUDGET = "OVER_BUDGET"
    """Its cycle budget ran out."""
    PRUNED = "PRUNED"
    """It cannot be among the best `top_k`; it has a bound and a reason."""
    CANCELLED = "CANCELLED"
    """The ranking ended before it did."""
    DUPLICATE_OF = "DUPLICATE_OF"
    """It is the same as an earlier candidate and shares its score."""


class JobState(WireEnum):
    """States of a job."""

    UNSPECIFIED = "UNSPECIFIED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True)
class Identity:
    """Everything that decides a result. Equal identities have equal reports, byte for byte."""

    trace: str
    """Digest of the trace."""
    machine: str
    """Digest of the machine, overrides included."""
    launch: str
    """Digest of the launch: grid, parameters, placement and the options that change a result."""
    model_version: str
    """Version of the timing model."""


@dataclass(frozen=True)
class Unit:
    """Use of one unit. `active_cycles + idle_cycles` is the total."""

    unit: str
    active_cycles: int
    idle_cycles: int
    ops: int


@dataclass(frozen=True)
class AdmittedUnit:
    """What one core's tiles asked of one named unit."""

    unit: str
    work: str
    """What is counted."""
    capacity_per_cycle: float
    """How much one such unit takes per core cycle."""
    instances: int
    admitted: int
    """How much it was given."""
    active_cycles: int
    idle_cycles: int


@dataclass(frozen=True)
class Core:
    """Statistics of one core."""

    core: int
    units: tuple[Unit, ...]
    work_items: int
    loads: int
    stores: int
    computes: int
    waits: int
    dram_requests: int
    admitted: tuple[AdmittedUnit, ...]


@dataclass(frozen=True)
class CycleStackEntry:
    """Cycles of one core that went to one cause, for example `compute.systolic` or `dram.queue`."""

    core: int
    cause: str
    cycles: int


@dataclass(frozen=True)
class Counter:
    """A count, or a row of them (a histogram)."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class ModelCounters:
    """Counts that only some models have."""

    counters: Mapping[str, Counter]


@dataclass(frozen=True)
class Channel:
    """Statistics of one DRAM channel."""

    reads: int
    writes: int


@dataclass(frozen=True)
class Numa:
    """One core's requests, by whether the partition of the channels that serves them is its own."""

    core: int
    local: int
    remote: int


@dataclass(frozen=True)
class Dram:
    """Statistics of the DRAM."""

    bytes_read: int
    bytes_written: int
    channels: tuple[Channel, ...]
    controllers: tuple[ModelCounters, ...]
    """The banked controllers' own counts, one per channel; empty for other models."""
    l2: tuple[ModelCounters, ...]
    """The L2 slices' own counts, one a channel; empty without an L2."""
    numa: tuple[Numa, ...]
    """Requests per core by NUMA partition of the channels; empty where there is one partition."""


@dataclass(frozen=True)
class Tile:
    """What became of one compute tile."""

    tile: str
    cycles: int
    """Core cycles of one run on this machine."""
    runs: int


@dataclass(frozen=True)
class Report:
    """The deterministic body of a result. Its lists are made of the message when they are first asked for."""

    cycles: int
    """Core cycles from launch until nothing is outstanding."""
    ns: str
    """The same in nanoseconds, with three decimals."""
    work_items: int
    dram_requests: int
    exactness: str
    """`exact_full`, `{"exact_warped":...}` or `transfer_level`."""
    notes: tuple[str, ...]
    identity: Identity
    out_of_bounds_transfers: int
    """Transfers that left their tensor (only for traces with `bounds: off`)."""
    _message: Any = field(repr=False, compare=False)

    @cached_property
    def cores(self) -> tuple[Core, ...]:
        """Statistics of each core, ordered by core."""
        return tuple(convert(Core, c) for c in self._message.cores)

    @cached_property
    def cycle_stack(self) -> tuple[CycleStackEntry, ...]:
        """Every cycle of every core, attributed to one cause. The entries of a core sum to `cycles`."""
        return tuple(convert(CycleStackEntry, e) for e in self._message.cycle_stack)

    @cached_property
    def dram(self) -> Dram:
        """Statistics of the DRAM."""
        return convert(Dram, self._message.dram)

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """What became of each compute tile; only for traces that say what tiles ask of named units."""
        return tuple(convert(Tile, t) for t in self._message.tiles)

    @cached_property
    def energy(self) -> Mapping[str, int] | None:
        """Energy by part in femtojoules, and the average power in microwatts; None if the machine has no costs."""
        if not self._message.HasField("energy"):
            return None
        return {name: sum(counter.values) for name, counter in self._message.energy.counters.items()}

    @cached_property
    def stack(self) -> Mapping[str, int]:
        """The cycle stack of all cores together: cycles by cause, the largest first."""
        total: dict[str, int] = {}
        for entry in self._message.cycle_stack:
            total[entry.cause] = total.get(entry.cause, 0) + entry.cycles
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    @classmethod
    def _of(cls, message: Any) -> Report:
        return cls(
            cycles=message.cycles,
            ns=message.ns,
            work_items=message.work_items,
            dram_requests=message.dram_requests,
            exactness=message.exactness,
            notes=tuple(message.notes),
            identity=convert(Identity, message.identity),
            out_of_bounds_transfers=message.out_of_bounds_transfers,
            _message=message,
        )

    def to_pandas(self) -> pd.DataFrame:
        """The cycle stack, one row per core and cause: `core`, `cause`, `cycles`."""
        return _frame(CycleStackEntry, self.cycle_stack)

    def units_to_pandas(self) -> pd.DataFrame:
        """Use of the units: `core`, `unit`, `active_cycles`, `idle_cycles`, `ops`."""
        rows = [{"core": c.core, **dataclasses.asdict(u)} for c in self.cores for u in c.units]
        return frame(rows, ["core", *(f.name for f in dataclasses.fields(Unit))])


@dataclass(frozen=True)
class Envelope:
    """How a result was obtained; differs from call to call."""

    origin: Origin
    queue_ms: float
    """Milliseconds it waited for a worker."""
    run_ms: float
    """Milliseconds it ran."""
    host: str
    computed_unix_s: int


@dataclass(frozen=True)
class Result:
    """A result: a deterministic body and an envelope."""

    report: Report
    envelope: Envelope

    @property
    def cycles(self) -> int:
        """Core cycles from launch until nothing is outstanding."""
        return self.report.cycles

    @property
    def ns(self) -> float:
        """The same in nanoseconds."""
        return float(self.report.ns)

    @classmethod
    def _of(cls, message: Any) -> Result:
        return cls(Report._of(message.report), convert(Envelope, message.envelope))

    def to_pandas(self) -> pd.DataFrame:
        """The cycle stack, one row per core and cause: `core`, `cause`, `cycles`."""
        return self.report.to_pandas()


@dataclass(frozen=True)
class Pruned:
    """Why a candidate was not simulated to its end."""

    bound: int
    """A score that it provably cannot beat, known before anything runs."""
    reason: str
    """Why it is excluded, for people."""
    resource: str
    """What gives the bound, for example ``dram`` or ``systolic``; empty if nothing is known."""
    by_bound: bool
    """The bound alone excludes it; otherwise its simulation went beyond the ``k``-th best."""


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate."""

    index: int
    """Its position in the request."""
    key: str
    status: Status
    score: int | None
    """Weighted sum of cycles (OK, and DUPLICATE_OF an OK one)."""
    results: tuple[Result, ...]
    """Results of its launches, in request order (OK)."""
    problem: Problem | None
    """Why it failed (FAILED)."""
    budget_cycles: int | None
    """Core cycles at which the budget ended the run (OVER_BUDGET)."""
    pruned: Pruned | None
    duplicate_of: int | None
    """Position of the earlier candidate it equals (DUPLICATE_OF)."""

    @classmethod
    def _of(cls, message: Any) -> Outcome:
        optional = {n: getattr(message, n) if message.HasField(n) else None for n in _OPTIONAL}
        return cls(
            index=message.index,
            key=message.key,
            status=Status._of(enum_name(message, "status")),
            results=tuple(Result._of(r) for r in message.results),
            problem=convert(Problem, message.problem) if message.HasField("problem") else None,
            pruned=convert(Pruned, message.pruned) if message.HasField("pruned") else None,
            **optional,
        )


_OPTIONAL = ("score", "budget_cycles", "duplicate_of")


@dataclass(frozen=True)
class Place:
    """One place of a ranking's order."""

    index: int
    """Position in the request."""
    key: str
    score: int
    tie_group: int
    """Candidates of one score share a tie group; groups count from 0."""
    margin: int
    """Its score less the best one."""


@dataclass(frozen=True)
class Ranking:
    """A finished ranking."""

    ranked: tuple[Place, ...]
    """Candidates with a score, best first: ascending score, ties by position in the request."""
    outcomes: tuple[Outcome, ...]
    """What became of each candidate, in request order."""
    note: str
    """A remark, for example that every candidate failed."""

    @property
    def best(self) -> Outcome | None:
        """The best candidate; None if none has a score."""
        return self.outcomes[self.ranked[0].index] if self.ranked else None

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many candidates ended in which status."""
        counts: dict[Status, int] = {}
        for outcome in self.outcomes:
            counts[outcome.status] = counts.get(outcome.status, 0) + 1
        return counts

    @classmethod
    def _of(cls, order: Any, outcomes: Sequence[Outcome]) -> Ranking:
        return cls(
            ranked=tuple(convert(Place, p) for p in order.ranked),
            outcomes=tuple(sorted(outcomes, key=lambda o: o.index)),
            note=order.note,
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per candidate, ranked ones first and in order. `place` counts from 1."""
        places = {p.index: (n, p) for n, p in enumerate(self.ranked, 1)}
        unranked = [o for o in self.outcomes if o.index not in places]
        rows = []
        for outcome in [self.outcomes[p.index] for p in self.ranked] + unranked:
            place, ranked = places.get(outcome.index, (None, None))
            rows.append(
                {
                    "index": outcome.index,
                    "key": outcome.key,
                    "status": outcome.status.value,
                    "place": place,
                    "score": outcome.score,
                    "tie_group": ranked.tie_group if ranked else None,
                    "margin": ranked.margin if ranked else None,
                    "bound": outcome.pruned.bound if outcome.pruned else None,
                    "problem": str(outcome.problem) if outcome.problem else None,
                }
            )
        table = frame(rows, _RANKING_COLUMNS)
        # Integers stay integers, absent or not.
        return table.astype({name: "Int64" for name in _RANKING_INTEGERS})


_RANKING_INTEGERS = ("place", "score", "tie_group", "margin", "bound")
_RANKING_COLUMNS = ("index", "key", "status", "place", "score", "tie_group", "margin", "bound", "problem")


@dataclass(frozen=True)
class ReplayOutcome:
    """What became of one launch of a replay: a result, a problem, or the cycles at which its budget ended it."""

    index: int
    """Position in the list."""
    key: str
    result: Result | None
    problem: Problem | None
    over_budget_cycles: int | None

    @classmethod
    def _of(cls, message: Any) -> ReplayOutcome:
        which = message.WhichOneof("outcome")
        return cls(
            index=message.index,
            key=message.key,
            result=Result._of(message.result) if which == "result" else None,
            problem=convert(Problem, message.problem) if which == "problem" else None,
            over_budget_cycles=message.over_budget_cycles if which == "over_budget_cycles" else None,
        )


def replay_to_pandas(outcomes: Iterable[ReplayOutcome]) -> pd.DataFrame:
    """One row per launch, in list order: `index`, `key`, `cycles`, `ns`, `origin`, `problem`."""
    rows = [
        {
            "index": o.index,
            "key": o.key,
            "cycles": o.result.cycles if o.result else None,
            "ns": o.result.ns if o.result else None,
            "origin": o.result.envelope.origin.value if o.result else None,
            "problem": _replay_problem(o),
        }
        for o in sorted(outcomes, key=lambda o: o.index)
    ]
    table = frame(rows, ("index", "key", "cycles", "ns", "origin", "problem"))
    return table.astype({"cycles": "Int64"})


def _replay_problem(outcome: ReplayOutcome) -> str | None:
    if outcome.over_budget_cycles is not None:
        return f"over budget at {outcome.over_budget_cycles} cycles"
    return str(outcome.problem) if outcome.problem else None


@dataclass(frozen=True)
class TraceParam:
    """An integer parameter of a kernel."""

    name: str
    default_value: int | None
    """Value of a launch that gives none; None: the launch must give one."""


@dataclass(frozen=True)
class TraceTensor:
    """A tensor argument of a kernel."""

    name: str
    element_bits: int
    role: str
    """`in`, `out` or `inout`."""
    axes: int


@dataclass(frozen=True)
class TraceBuffer:
    """A scratchpad buffer of a kernel."""

    name: str
    size_bytes: int
    """Bytes of scratchpad; 0 for a virtual buffer."""


@dataclass(frozen=True)
class TraceTile:
    """A compute tile of a kernel."""

    name: str
    cycles: int | None
    """Core cycles; None: no launch may run the tile."""
    overlap_cycles: int
    """Core cycles by which a successor on the same unit may overlap it."""
    source: str
    """Where the cycles come from: `measured`, `analytic: <formula>` or `declared`."""


@dataclass(frozen=True)
class TraceInfo:
    """What a stored trace is, without its program."""

    digest: str
    kernel: str
    producer: str
    axes: int
    """Number of program ids. A launch's grid has as many extents."""
    params: tuple[TraceParam, ...]
    tensors: tuple[TraceTensor, ...]
    buffers: tuple[TraceBuffer, ...]
    tiles: tuple[TraceTile, ...]
    statements: int
    strict_bounds: bool
    """Transfers outside their tensor are refused."""
    registers: int
    """Registers one work-item takes, of all its threads together; 0: not counted."""
    threads: int
    """Threads one work-item takes; 0: not counted."""


@dataclass(frozen=True)
class StoredObject:
    """An entry of the store."""

    digest: str
    name: str
    size_bytes: int
    stored_unix_s: int


@dataclass(frozen=True)
class Preset:
    """An embedded machine."""

    name: str
    summary: str
    digest: str


@dataclass(frozen=True)
class MachineInfo:
    """What a machine is."""

    digest: str
    name: str
    cores: int
    dram_channels: int
    scratchpad_bytes: int
    """Per core; 0: unlimited."""
    core_khz: int
    peaks: tuple[str, ...]
    """Derived figures, one line each."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ServerLimits:
    """Limits on what one client may send."""

    message_bytes: int
    trace_bytes: int
    work_items: int
    requests: int
    candidates: int
    launches_per_candidate: int
    digests: int
    tenant_bytes: int


@dataclass(frozen=True)
class ServerCounters:
    """What the server has done since it started."""

    simulations: int
    cache_hits: int
    joined: int
    cancelled: int
    store_damage: int


@dataclass(frozen=True)
class Durations:
    """How long something took since the server started, in microseconds, to 1 %."""

    count: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int


@dataclass(frozen=True)
class ServerInfo:
    """Facts about a server."""

    version: str
    model_version: str
    workers: int
    queue_capacity: int
    queued: int
    running: int
    draining: bool
    limits: ServerLimits
    uptime_ms: int
    counters: ServerCounters
    queue_wait: Durations
    """How long simulations waited for a worker."""
    run_time: Durations
    """How long simulations ran that came to their end."""


@dataclass(frozen=True)
class Job:
    """A list of launches or a ranking that outlives the connection."""

    id: str
    name: str
    state: JobState
    done: int
    """Launches or candidates decided so far."""
    total: int
    submitted_unix_s: int
    problem: Problem | None
    """Why it could not be run (FAILED)."""


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """A pandas frame, with its columns even when it has no row."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frames need pandas: pip install 'tilesim[pandas]'") from error
    return pandas.DataFrame(rows, columns=list(columns))


def _frame(cls: type[Any], entries: Iterable[Any]) -> pd.DataFrame:
    return frame([vars(e) for e in entries], [f.name for f in dataclasses.fields(cls)])

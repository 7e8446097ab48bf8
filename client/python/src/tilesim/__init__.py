"""Client of tilesim, the cycle-level simulator for tile kernels.

    client = tilesim.Client(machine="tpuv3")
    result = client.simulate(tilesim.Launch(Path("kernel.tile"), grid=(4, 4)))
    print(result.cycles, result.report.stack)

`tilesim.aio.Client` is the same for asyncio; `tilesim.triton` and `tilesim.inductor` meet the autotuners.
"""

from . import aio
from ._operations import DescribedMachine, MachineList
from .builder import TraceBuilder
from .client import Client, RankStream, Stream
from .errors import (
    AllConfigsFailed,
    Cancelled,
    DaemonError,
    DataLoss,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    ForkedClient,
    Internal,
    InvalidInput,
    NotFound,
    OverBudget,
    Problem,
    TilesimError,
    Unavailable,
    Unimplemented,
)
from .expr import Expr, call, ceil_div, logical_and, logical_not, logical_or, maximum, minimum, select
from .launches import Candidate, Launch, Machine, Replay, Trace
from .results import (
    Job,
    MachineInfo,
    Outcome,
    Ranking,
    ReplayOutcome,
    Report,
    Result,
    ServerInfo,
    Status,
    TraceInfo,
    replay_to_pandas,
)

__all__ = [
    "AllConfigsFailed",
    "Cancelled",
    "Candidate",
    "Client",
    "DaemonError",
    "DataLoss",
    "DeadlineExceeded",
    "DescribedMachine",
    "Exhausted",
    "Expr",
    "FailedPrecondition",
    "ForkedClient",
    "Internal",
    "InvalidInput",
    "Job",
    "Launch",
    "Machine",
    "MachineInfo",
    "MachineList",
    "NotFound",
    "Outcome",
    "OverBudget",
    "Problem",
    "RankStream",
    "Ranking",
    "Replay",
    "ReplayOutcome",
    "Report",
    "Result",
    "ServerInfo",
    "Status",
    "Stream",
    "TilesimError",
    "Trace",
    "TraceBuilder",
    "TraceInfo",
    "Unavailable",
    "Unimplemented",
    "aio",
    "call",
    "ceil_div",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "replay_to_pandas",
    "select",
]

"""Triton: pruning the configurations of an autotuner by simulated cycles, and recording kernels as traces.

    client = tilesim.Client(machine="my_machine")

    @triton.autotune(
        configs,
        key=["M", "N", "K"],
        prune_configs_by={"early_config_prune": client.prune(trace_for=trace_for, keep=5)},
    )
    @triton.jit
    def kernel(...): ...

`trace_for(config, named_args, **kwargs)` says what a configuration is to the simulator: a `Launch` (or a `Candidate` of
several), or the `Problem` that keeps it from being one; an exception is such a problem, too.

    recording = record(kernel, grid, (x, y, out, n), kwargs={"BLOCK": 1024})
    client.simulate(recording.launch())

`record` needs Triton and numpy, and loads them when it is first looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .prune import Prune, TraceFor

if TYPE_CHECKING:
    from .recording import Costs, RecordError, Recording, TensorSpec, record
    from .tilelens import SavedLaunch, read_tilelens

__all__ = [
    "Costs",
    "Prune",
    "RecordError",
    "Recording",
    "SavedLaunch",
    "TensorSpec",
    "TraceFor",
    "read_tilelens",
    "record",
]

_MODULES = {
    **dict.fromkeys(["Costs", "RecordError", "Recording", "TensorSpec", "record"], "recording"),
    **dict.fromkeys(["SavedLaunch", "read_tilelens"], "tilelens"),
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{module}", __name__), name)

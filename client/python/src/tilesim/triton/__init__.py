"""Triton: pruning the configurations of an autotuner by simulated cycles.

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
"""

from .prune import Prune, TraceFor

__all__ = ["Prune", "TraceFor"]

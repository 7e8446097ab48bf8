"""PyTorch's Inductor: `max_autotune` by simulated cycles instead of measured times.

    with tilesim.inductor.simulated_autotune(client, trace_for, machine="my_machine", devices=["cuda"]):
        torch.compile(model, mode="max-autotune")(*inputs)

Works with the versions of PyTorch whose autotuner is `torch._inductor.select_algorithm.AlgorithmSelectorCache` with
`make_benchmark_fn`; tested with 2.15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ._tuning import Found, candidate
from .client import Client
from .errors import FailedPrecondition
from .launches import MachineLike
from .results import Ranking

LAST_MS = 1e15
"""The time of an extern kernel: longer than any simulated one, but finite, so that it is there to fall back on."""


@dataclass(frozen=True)
class Operand:
    """A tensor of an operation, with the sizes that Inductor tunes for."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    """For example `float16`."""


@dataclass(frozen=True)
class Choice:
    """A choice of the autotuner that is no extern kernel."""

    name: str
    description: str
    """Its configuration, for people; may be empty."""
    info: Mapping[str, Any]
    """Its configuration by name, as Inductor tells it, for example `tile_shape`, `num_stages`."""
    inputs: tuple[Operand, ...]
    output: Operand
    device: str
    caller: Any = field(repr=False, compare=False)
    """Inductor's own object."""


class TraceFor(Protocol):
    """What a choice is to the simulator."""

    def __call__(self, choice: Choice) -> Found: ...


@dataclass(frozen=True)
class Tuning:
    """One tuning that was simulated."""

    choices: tuple[Choice, ...]
    """The choices that were ranked."""
    ranking: Ranking
    """Their ranking."""
    milliseconds: Mapping[str, float]
    """What Inductor was told, by the names of all choices."""


@contextmanager
def simulated_autotune(
    client: Client,
    trace_for: TraceFor,
    *,
    machine: MachineLike | None = None,
    devices: Collection[str] = ("cuda",),
    timeout: float | None = None,
) -> Iterator[list[Tuning]]:
    """Within it, Inductor's autotuner asks the simulator about operations on `devices` instead of measuring them.

    A choice that cannot be simulated gets an infinite time. Extern kernels come last, among each other in the order in
    which they are offered. Choices are not compiled before one is picked. Simulated times reach none of Inductor's
    caches, and measured ones are not read from them. Everything is as before afterwards, also after an exception; what
    has been compiled stays as it is.

    It concerns all threads of the process. Gives the list of tunings, which grows as they happen.
    """
    from torch._inductor import config
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    try:
        measure = vars(AlgorithmSelectorCache)["make_benchmark_fn"].__func__
    except (KeyError, AttributeError):
        raise FailedPrecondition(
            "this version of PyTorch has another autotuner", hint="use 2.15, which this was tested with"
        ) from None
    look_up = AlgorithmSelectorCache.lookup
    cycles_per_ms = client.describe_machine(machine, timeout=timeout).info.core_khz
    tunings: list[Tuning] = []

    def simulated(callers: Sequence[Any], input_nodes: Sequence[Any], layout: Any) -> dict[Any, float]:
        inputs = tuple(_operand(n.get_size(), n.get_stride(), n.get_dtype()) for n in input_nodes)
        output = _operand(layout.size, layout.stride, layout.dtype)
        choices = [_choice(c, inputs, output, layout.device.type) for c in callers if not _is_extern(c)]
        times: dict[Any, float] = dict.fromkeys(callers, LAST_MS)
        if choices:
            candidates = [candidate(c.name, partial(trace_for, c)) for c in choices]
            ranking = client.rank(candidates, machine=machine, progress=False, timeout=timeout)
            scores = {place.index: place.score for place in ranking.ranked}
            for index, choice in enumerate(choices):
                times[choice.caller] = scores[index] / cycles_per_ms if index in scores else math.inf
            tunings.append(Tuning(tuple(choices), ranking, {c.name: times[c] for c in callers}))
        return times

    def make_benchmark_fn(
        cls: type, choices: Sequence[Any], input_nodes: Sequence[Any], layout: Any, *args: Any, **kwargs: Any
    ) -> Callable[[Sequence[Any]], dict[Any, float]]:
        if layout.device.type in devices and not kwargs.get("is_collective"):
            return lambda callers: simulated(callers, input_nodes, layout)
        measured: Callable[[Sequence[Any]], dict[Any, float]] = measure(
            cls, choices, input_nodes, layout, *args, **kwargs
        )
        return measured

    def lookup(
        self: Any, choices: Sequence[Any], op: str, inputs: str, benchmark: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if choices and benchmark is not None and choices[0].layout.device.type in devices:
            return benchmark(choices)
        return look_up(self, choices, op, inputs, benchmark, *args, **kwargs)

    with ExitStack() as restore:
        for name, value in (("make_benchmark_fn", classmethod(make_benchmark_fn)), ("lookup", lookup)):
            restore.enter_context(_replaced(AlgorithmSelectorCache, name, value))
        restore.enter_context(_configured(config, _INDUCTOR))
        import torch._functorch.config as functorch

        restore.enter_context(_configured(functorch, _FUNCTORCH))
        yield tunings


_INDUCTOR: Mapping[str, Any] = {
    # Compiled graphs hold what was picked, and their caches do not know why.
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    # This way of tuning measures in other processes, without asking.
    "pipeline_max_autotune_gemm": False,
    "precompilation_timeout_seconds": 0,
}
_FUNCTORCH: Mapping[str, Any] = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}


def _configured(module: Any, settings: Mapping[str, Any]) -> Any:
    """A context with those of the settings that this version knows."""
    return module.patch({name: value for name, value in settings.items() if hasattr(module, name)})


@contextmanager
def _replaced(cls: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute of a class has another value."""
    own = name in vars(cls)
    before = vars(cls).get(name)
    setattr(cls, name, value)
    try:
        yield
    finally:
        if own:
            setattr(cls, name, before)
        else:
            delattr(cls, name)


def _unwrapped(caller: Any) -> Any:
    """A choice without what only changes its inputs and output."""
    while hasattr(caller, "_wrapped"):
        caller = caller._wrapped
    return caller


def _is_extern(caller: Any) -> bool:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    return bool(AlgorithmSelectorCache._is_extern(_unwrapped(caller)))


def _choice(caller: Any, inputs: tuple[Operand, ...], output: Operand, device: str) -> Choice:
    plain = _unwrapped(caller)
    return Choice(
        name=caller.name,
        description=getattr(plain, "description", "") or "",
        info=dict(plain.info_dict()),
        inputs=inputs,
        output=output,
        device=device,
        caller=caller,
    )


def _operand(shape: Sequence[Any], stride: Sequence[Any], dtype: Any) -> Operand:
    return Operand(_sizes(shape), _sizes(stride), str(dtype).removeprefix("torch."))


def _sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes as numbers; symbolic ones as those that Inductor tunes for."""
    from torch._inductor.virtualized import V

    variables = V.graph.sizevars
    hints = getattr(variables, "optimization_hints", None) or variables.size_hints
    return tuple(int(s) for s in hints(sizes))

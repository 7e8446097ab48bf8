"""Pruning for Triton's own autotuner, under Triton's CPU interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

import tilesim
from kernels import copy

# The decorators look at it when a kernel is defined.
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs the extra test-triton")

import numpy as np
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics

pytestmark = pytest.mark.triton

N = 1000
BLOCKS = (16, 64, 256, 128)


class Tensor:
    """What the interpreter asks of a tensor, over numpy."""

    device = "cpu"

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.dtype = values.dtype

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def untyped_storage(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def new_empty(self, size: int, device: str) -> Tensor:
        return Tensor(np.empty(0, self.dtype))

    def set_(self, storage: Tensor, *_: object) -> None:
        self.values = storage.values

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.values.shape

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def copy_(self, other: Tensor) -> None:
        assert other.values is self.values


def configs(blocks: tuple[int, ...] = BLOCKS) -> list[triton.Config]:
    return [triton.Config({"BLOCK": b}, num_warps=4 if b < 256 else 8) for b in blocks]


class Bench:
    """A benchmark that runs the kernel, and says that each run takes longer than the one before."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, kernel_call: Callable[[], object], quantiles: object) -> list[float]:
        kernel_call()
        self.runs += 1
        return [float(self.runs)] * 3


def kernel(
    prune: Any,
    *,
    heuristics: dict[str, Any] | None = None,
    above: dict[str, Any] | None = None,
    tuned: list[triton.Config] | None = None,
) -> tuple[Any, Bench]:
    """A tuned kernel that adds 1, with heuristics below or above the autotuner."""

    def add_one(x, y, n, BLOCK: tl.constexpr, SCALE: tl.constexpr = 1):  # type: ignore[no-untyped-def]
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) + SCALE, mask=offsets < n)

    bench = Bench()
    function = triton.jit(add_one)
    if heuristics:
        function = triton.heuristics(heuristics)(function)
    function = triton.autotune(
        configs() if tuned is None else tuned,
        key=["n"],
        prune_configs_by={"early_config_prune": prune},
        do_bench=bench,
    )(function)
    if above:
        function = triton.heuristics(above)(function)
    return function, bench


def trace_for(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
    """The launch of a configuration of `add_one`: the more it moves at once, the faster."""
    block = config.kwargs["BLOCK"]
    assert kwargs["grid"] == (-(-named_args["n"] // block),)
    return tilesim.Launch(copy(block, cycles=100), kwargs["grid"], {"N": named_args["n"]})


def launch(function: Any, grid: Any = lambda meta: (triton.cdiv(N, meta["BLOCK"]),), **kwargs: Any) -> np.ndarray:
    """Runs a kernel; gives what it wrote."""
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    function[grid](Tensor(x), Tensor(y), N, **kwargs)
    return y - x


def state(function: Any) -> Any:
    """Everything that an autotuner and the heuristics around it hold and a prune could change."""
    parts: list[Any] = []
    while function is not None:
        if isinstance(function, Heuristics):
            parts.append((id(function), list(function.values.items()), list(function.arg_names)))
        if isinstance(function, Autotuner):
            held = [(id(c), deepcopy(vars(c))) for c in function.configs]
            plain = {k: v for k, v in vars(function).items() if k not in ("configs", "fn", "nargs", "bench_time")}
            parts.append((id(function), id(function.configs), held, deepcopy(plain["cache"]), sorted(plain)))
        function = getattr(function, "fn", None)
    return parts


def simulated_order(client: tilesim.Client) -> list[int]:
    """The blocks from the fastest to the slowest."""
    launches = {c.kwargs["BLOCK"]: trace_for(c, {"n": N}, grid=(-(-N // c.kwargs["BLOCK"]),)) for c in configs()}
    cycles = {block: client.simulate(launch).cycles for block, launch in launches.items()}
    assert len(set(cycles.values())) == len(BLOCKS)
    return sorted(BLOCKS, key=cycles.__getitem__)


def blocks(function: Any) -> list[int]:
    """The blocks of the configurations that the autotuner timed, in its order."""
    return [c.kwargs["BLOCK"] for c in function.configs_timings]


def test_the_autotuner_measures_the_best(client: tilesim.Client) -> None:
    best = simulated_order(client)
    rankings: list[tilesim.Ranking] = []
    function, bench = kernel(client.prune(trace_for=trace_for, keep=2, on_ranking=rankings.append))
    before = state(function)
    assert (launch(function) == 1).all()
    assert bench.runs == 2 and blocks(function) == best[:2]
    # The benchmark says that what comes first is the fastest.
    assert function.best_config is function.configs[BLOCKS.index(best[0])]
    # One call told of all configurations.
    assert [len(r.outcomes) for r in rankings] == [4]
    # Triton has written its own results; all else is as it was.
    function.cache.clear()
    for name in ("configs_timings", "best_config", "bench_time", "nargs"):
        vars(function).pop(name, None)
    assert [p[:3] for p in state(function)] == [p[:3] for p in before]


def test_pruning_alone_changes_nothing(client: tilesim.Client) -> None:
    function, bench = kernel(client.prune(trace_for=trace_for, keep=1))
    function.nargs = {"x": None, "y": None, "n": N}
    kwargs = {"grid": lambda meta: (triton.cdiv(N, meta["BLOCK"]),), "warmup": False}
    given, before = dict(kwargs), state(function)
    (kept,) = function.prune_configs(kwargs)
    assert kept is function.configs[BLOCKS.index(simulated_order(client)[0])]
    assert state(function) == before and kwargs == given
    assert function.nargs == {"x": None, "y": None, "n": N}
    assert function.cache == {} and bench.runs == 0


def test_what_a_caller_does_to_its_arguments_stays_there(client: tilesim.Client) -> None:
    def greedy(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
        found = trace_for(config, named_args, **kwargs)
        named_args.clear()
        kwargs.clear()
        return found

    function, _ = kernel(client.prune(greedy, 1))
    assert (launch(function) == 1).all()


def test_failures_are_left_out(client: tilesim.Client) -> None:
    def picky(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> Any:
        block = config.kwargs["BLOCK"]
        if block == 16:
            raise RuntimeError("no 16")
        if block == 64:
            return tilesim.Problem("caller.no", "", "no 64")
        if block == 128:
            return "neither"
        return tilesim.Candidate(trace_for(config, named_args, **kwargs), "mine")

    rankings: list[tilesim.Ranking] = []
    function, bench = kernel(client.prune(picky, 4, on_ranking=rankings.append))
    before = state(function)
    assert (launch(function) == 1).all()
    assert bench.runs == 1 and blocks(function) == [256]
    assert state(function)[0][:3] == before[0][:3]
    problems = [o.problem for o in rankings[0].outcomes]
    assert [p.code if p else None for p in problems] == [
        "client.RuntimeError", "caller.no", None, "client.bad_trace",
    ]  # fmt: skip
    assert rankings[0].outcomes[2].key == "mine"


def test_all_configs_failed(client: tilesim.Client) -> None:
    def never(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
        raise ValueError(f"no {config.kwargs['BLOCK']}")

    function, bench = kernel(client.prune(never, 2))
    before = state(function)
    with pytest.raises(tilesim.AllConfigsFailed) as error:
        launch(function)
    assert list(error.value.failures) == [f"{i}: {c}" for i, c in enumerate(function.configs)]
    assert "no 16" in str(error.value) and error.value.hint
    assert state(function) == before and function.cache == {} and bench.runs == 0

    function, bench = kernel(client.prune(never, 2, all_failed="keep"))
    assert (launch(function) == 1).all()
    assert bench.runs == 4


def test_an_unreachable_server_changes_nothing() -> None:
    with tilesim.Client("127.0.0.1:1", machine="tpuv3") as nobody:
        function, bench = kernel(nobody.prune(trace_for, 2))
        before = state(function)
        with pytest.raises(tilesim.Unavailable):
            launch(function)
        assert state(function) == before and function.cache == {} and bench.runs == 0


def test_heuristics_above_the_autotuner(client: tilesim.Client) -> None:
    seen: list[Any] = []

    def watching(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
        seen.append(kwargs["SCALE"])
        return trace_for(config, named_args, **kwargs)

    function, bench = kernel(client.prune(watching, 2), above={"SCALE": lambda args: 1 + args["n"] % 7})
    before = state(function)
    assert (launch(function) == 1 + N % 7).all()
    assert seen == [1 + N % 7] * 4 and bench.runs == 2
    assert [p[:3] for p in state(function)] == [p[:3] for p in before]


def test_autotuning_over_heuristics(client: tilesim.Client) -> None:
    values = {"SCALE": lambda args: args["BLOCK"] // 16, "TWICE": lambda args: 2 * args["SCALE"]}
    seen: dict[int, Any] = {}

    def watching(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
        seen[config.kwargs["BLOCK"]] = (kwargs["SCALE"], kwargs["TWICE"], kwargs["grid"])
        return trace_for(config, named_args, **kwargs)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        assert meta["SCALE"] == meta["BLOCK"] // 16
        return (triton.cdiv(meta["n"], meta["SCALE"] * 16),)

    function, bench = kernel(client.prune(watching, 1, heuristics=values), heuristics={"SCALE": values["SCALE"]})
    before = state(function)
    best = simulated_order(client)[0]
    assert (launch(function, grid) == best // 16).all()
    assert seen == {b: (b // 16, b // 8, (-(-N // b),)) for b in BLOCKS}
    assert bench.runs == 1
    assert [p[:3] for p in state(function)[1:]] == [p[:3] for p in before[1:]]

    # Without them the grid cannot be known: that is what each configuration fails with.
    function, _ = kernel(client.prune(watching, 1), heuristics={"SCALE": values["SCALE"]})
    with pytest.raises(tilesim.AllConfigsFailed, match="SCALE"):
        launch(function, grid)


def test_a_grid_need_not_be_a_function(client: tilesim.Client) -> None:
    seen = []

    def watching(config: triton.Config, named_args: dict[str, Any], **kwargs: Any) -> tilesim.Launch:
        seen.append(kwargs["grid"])
        return tilesim.Launch(copy(16), [kwargs["grid"][0]], {"N": N})

    function, _ = kernel(client.prune(watching, 1), tuned=configs((16, 32)))
    assert (launch(function, (triton.cdiv(N, 16),)) == 1).all()
    assert seen == [(63,), (63,)]


def test_bad_arguments(client: tilesim.Client) -> None:
    with pytest.raises(tilesim.InvalidInput, match="cannot keep 0"):
        client.prune(trace_for, 0)
    with pytest.raises(tilesim.InvalidInput, match="is no choice"):
        client.prune(trace_for, 1, all_failed="ignore")  # type: ignore[arg-type]
    assert client.prune(trace_for, 1)([], {}) == []

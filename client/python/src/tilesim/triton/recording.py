"""Recording: what one program instance of a Triton kernel does, as a trace."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..launches import Launch, Trace
from ._costs import Costs
from ._emit import Declared, emit
from ._expr import Env, Expr
from ._fold import Folded, FoldedBranch, Mismatch, fold, unrolled
from ._interpret import (
    Access,
    Branch,
    DescriptorArgument,
    Item,
    RecordError,
    Source,
    TensorArgument,
    Vector,
    Work,
    interpret,
)

__all__ = ["Costs", "RecordError", "Recording", "TensorSpec", "record"]

Program = tuple[int, int, int]

#: Programs that expressions are made from, beside corners and neighbours.
FITTED = 6

#: Grids up to this size are recorded whole.
WHOLE_GRID = 32

#: Program ids, at most, that are searched for edges and for branches nobody took.
SEARCHED = 1 << 13

_DTYPES = {
    "bool": "int1",
    "i1": "int1",
    **{f"{'u' * u}int{n}": f"{'u' * u}int{n}" for u in (0, 1) for n in (8, 16, 32, 64)},
    **{f"{s}{n}": f"{'u' * (s == 'u')}int{n}" for s in "iu" for n in (8, 16, 32, 64)},
    **{f"float{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"fp{n}": f"float{n}" for n in (16, 32, 64)},
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float8_e4m3fn": "float8e4nv",
    "float8_e4m3fnuz": "float8e4b8",
    "float8_e5m2": "float8e5",
    "float8_e5m2fnuz": "float8e5b16",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument by its shape alone: for kernels whose data decides neither what they touch nor what they do."""

    shape: tuple[int, ...]
    dtype: str
    """Its element type as numpy, torch or Triton call it, for example "float16"."""
    strides: tuple[int, ...] | None = None
    """Elements between neighbours; row-major if left out."""


@dataclass(frozen=True)
class Recording:
    """One launch of a kernel."""

    trace: Trace
    """What every work-item does (or, with `every="program"`, what this one does)."""
    grid: tuple[int, ...]
    """Work-items along each axis, as the trace is meant to be launched."""
    work_item: Mapping[str, Any] = field(repr=False)
    """What the recorded program did, op by op, in plain numbers: `kernel`, `grid`, `pid`, `args` and `ops`. Loads and
    stores count lanes (`total`, and `valid` where the mask holds) and bytes; a `gather` is no strided box and counts
    lines of 64 bytes; `ew` counts elementwise operations and reductions by shape, scalar ones aside."""
    fitted: tuple[Program, ...]
    """The programs that the trace was made from."""
    verified: tuple[Program, ...]
    """Further programs that were recorded and do what the trace says."""
    notes: tuple[str, ...]
    """What the trace cannot say exactly, and what was left out."""

    @property
    def text(self) -> str:
        """The trace in the text form."""
        return self.trace.content.decode()

    def launch(self, **options: Any) -> Launch:
        """The launch that was recorded; options as `Launch` has them."""
        return Launch(self.trace, self.grid, **options)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trace to a file in the text form (`.tile`)."""
        path = Path(path)
        path.write_bytes(self.trace.content)
        return path


def record(
    kernel: Any,
    grid: int | Sequence[int] | Callable[[dict[str, Any]], Any],
    args: Sequence[Any] | Mapping[str, Any] = (),
    program: Sequence[int] = (0, 0, 0),
    *,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    stages: int | None = None,
    costs: Costs | None = None,
    every: Literal["launch", "program"] = "launch",
    check: int = 8,
    seed: int = 0,
) -> Recording:
    """Runs one program instance of a Triton kernel in Triton's interpreter and writes what it does as a trace.

    What depends on the program id is found from neighbouring programs, from the corners of the grid and from the
    integers that the kernel computes from its ids, and is held against `check` further programs drawn with `seed` (all
    of a small grid). `RecordError` if it cannot be said for every program; `every="program"` then records this one
    alone. Nothing of the caller's is written to, and no tensor's data goes into the trace; only tensors that decide
    what is touched need any (others may be `TensorSpec`s). TRITON_INTERPRET need not be set.

    `kernel` may be under `triton.heuristics` and `triton.autotune`; of the configurations of an autotuner `config` says
    which, unless there is but one. `stages`: how many buffers the loads of a loop with a product use in turn
    (`num_stages` of the configuration, if one is given); 1, the default, loads and computes in turn.
    """
    call = _Call.of(kernel, args, dict(kwargs or {}), config)
    grid_3, axes = _grid(grid, call.named)
    base = _program(program, grid_3)
    if stages is None:
        stages = call.stages or 1
    if every not in ("launch", "program"):
        raise RecordError(f"every={every!r}", path="every", hint='use "launch" or "program"')
    recorder = _Programs(call, grid_3)
    item = recorder(base)
    fixed = None
    if every == "program":
        recorder.fitted = {base}
        fixed = (base, grid_3)
        axes = 1
    else:
        recorder.choose(base, check, random.Random(seed))
    folded = recorder.fold(lenient=every == "program")
    name = call.function.__name__
    origins = {"grid": _words(grid_3[:axes])} if fixed is None else {"program": _words(base), "grid": _words(grid_3)}
    origins |= {k: str(v) for k, v in call.constants.items()}
    declared = [Declared(s.name, max(8, int(s.dtype.primitive_bitwidth)), e) for s, e in call.tensors]
    out = emit(folded.block, name, declared, axes, costs or Costs(), stages, origins, fixed)
    everything = set(recorder.items)
    return Recording(
        trace=Trace.text(str(out), f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.tile"),
        grid=grid_3[:axes] if fixed is None else (1,),
        work_item=_describe(name, item, grid_3, call),
        fitted=tuple(sorted(recorder.fitted)),
        verified=tuple(sorted(everything - recorder.fitted)),
        notes=(*call.notes, *folded.notes),
    )


class _Programs:
    """The programs that have been recorded."""

    def __init__(self, call: _Call, grid: Program) -> None:
        self.call = call
        self.grid = grid
        self.items: dict[Program, Item] = {}
        self.fitted: set[Program] = set()

    def __call__(self, program: Program) -> Item:
        if program not in self.items:
            call = self.call
            self.items[program] = interpret(
                call.function, call.arguments, call.constexprs, [s for s, _ in call.tensors], self.grid, program
            )
        return self.items[program]

    def choose(self, base: Program, check: int, source: random.Random) -> None:
        """Records neighbours, corners and some more to make expressions from, and others to hold them against."""
        self.fitted = {base}
        for axis in range(3):
            for step in (1, 2, -1):
                near = list(base)
                near[axis] += step
                if 0 <= near[axis] < self.grid[axis]:
                    self.fitted.add(tuple(near))  # type: ignore[arg-type]
        self.fitted |= set(_ids(*((0, n - 1) for n in self.grid)))
        for _ in range(FITTED):
            self.fitted.add(self.draw(source))
        for program in sorted(self.fitted):
            self(program)
        for program in self.edges(source):
            self(program)
            self.fitted.add(program)
        if math.prod(self.grid) <= WHOLE_GRID:
            for program in _ids(*map(range, self.grid)):
                self(program)
            return
        wanted = len(self.items) + check
        for _ in range(8 * check):
            if len(self.items) < wanted:
                self(self.draw(source))

    def edges(self, source: random.Random) -> list[Program]:
        """Programs where masks and conditions are likely to change: where a number that addresses or masks are made of
        is largest or smallest, and on both sides of where a condition turns."""
        if math.prod(self.grid) <= SEARCHED:
            programs = list(_ids(*map(range, self.grid)))
        else:
            drawn = {self.draw(source) for _ in range(SEARCHED)}
            for axis, n in enumerate(self.grid):
                ends: list[Sequence[int]] = [
                    (0, m - 1) if i != axis else range(min(n, SEARCHED)) for i, m in enumerate(self.grid)
                ]
                drawn |= set(_ids(*ends))
            programs = sorted(drawn)
        found: dict[Program, None] = {}
        used = [e for item in self.items.values() for e, direct in item.scalars.items() if direct]
        for expr in dict.fromkeys(e for e in used if not e.paths):
            values = [(v, p) for p in programs if (v := self.value(expr, p)) is not None]
            if values:
                found |= dict.fromkeys((min(values)[1], max(values)[1]))
        conditions = (e for item in self.items.values() for e in _conditions(item.block))
        for expr in dict.fromkeys(conditions):
            truth = [(bool(v), p) for p in programs if (v := self.value(expr, p)) is not None]
            turns = [i for i in range(1, len(truth)) if truth[i - 1][0] != truth[i][0]]
            for i in {*turns[:1], *turns[-1:]}:
                found |= dict.fromkeys((truth[i - 1][1], truth[i][1]))
        return [p for p in found if p not in self.items]

    def value(self, expr: Expr, program: Program) -> int | None:
        try:
            return expr.eval(Env(program, self.grid, {}))
        except (ZeroDivisionError, ValueError):
            return None

    def draw(self, source: random.Random) -> Program:
        x, y, z = (source.randrange(n) for n in self.grid)
        return x, y, z

    def fold(self, lenient: bool) -> Folded:
        """What all of them do; a program that contradicts the others joins those that expressions are made from."""
        while True:
            try:
                folded = fold(list(self.items.values()), self.grid, self.fitted, lenient)
            except Mismatch as e:
                if e.irregular and self.unroll():
                    continue
                if e.irregular or e.program in self.fitted:
                    raise
                self.fitted.add(e.program)
                continue
            unseen = None if lenient else self.unseen(folded)
            if unseen is None:
                return folded
            self(unseen)
            self.fitted.add(unseen)

    def unroll(self) -> bool:
        """Writes out the loops that the compiler unrolls; whether that changed anything."""
        changed = False
        for item in self.items.values():
            block = unrolled(item.block)
            changed |= _count(block) != _count(item.block)
            item.block = block
        return changed

    def unseen(self, folded: Folded) -> Program | None:
        """A program that goes a way at a condition which none recorded went."""
        for node in folded.block.walk():
            if not isinstance(node, FoldedBranch) or node.condition.paths:
                continue
            missing = [taken for taken in (True, False) if all(t != taken for _, t in node.instances)]
            if not missing:
                continue
            programs = _ids(*map(range, self.grid))
            for program in itertools.islice(programs, SEARCHED):
                value = self.value(node.condition, program)
                if value is not None and bool(value) == missing[0] and program not in self.items:
                    return program
        return None


def _ids(x: Iterable[int], y: Iterable[int], z: Iterable[int]) -> Iterator[Program]:
    return itertools.product(x, y, z)


def _conditions(block: Any) -> Iterator[Expr]:
    for node in block.nodes:
        for _, body in getattr(node, "iterations", ()):
            yield from _conditions(body)
        if isinstance(node, Branch):
            if not node.condition.paths:
                yield node.condition
            yield from _conditions(node.block)


def _count(block: Any) -> int:
    total = 0
    for node in block.nodes:
        total += 1
        for _, body in getattr(node, "iterations", ()):
            total += _count(body)
        if isinstance(node, Branch):
            total += _count(node.block)
    return total


@dataclass
class _Call:
    """A kernel function and its arguments."""

    function: Any
    #: Arguments of the function by name, tensors as `TensorArgument`s.
    arguments: dict[str, Any]
    #: Arguments as they were given, for the grid.
    named: dict[str, Any]
    constexprs: frozenset[str]
    tensors: list[tuple[Source, tuple[int, ...]]]
    stages: int | None
    notes: list[str]
    #: Integers and the like that the trace is made for.
    constants: dict[str, Any]

    @classmethod
    def of(cls, kernel: Any, args: Sequence[Any] | Mapping[str, Any], kwargs: dict[str, Any], config: Any) -> _Call:
        try:
            from triton.runtime.autotuner import Autotuner, Heuristics
            from triton.runtime.jit import _normalize_ty
        except ImportError as e:
            raise RecordError("recording needs Triton", hint="pip install triton==3.6.0 'numpy<2.4'") from e
        if isinstance(args, Mapping):
            positional, kwargs = [], {**args, **kwargs}
        else:
            positional = list(args)
        notes: list[str] = []
        stages = kwargs.get("num_stages")
        used = False
        while isinstance(kernel, Autotuner | Heuristics):
            if isinstance(kernel, Heuristics):
                for name, value in kernel.values.items():
                    kwargs[name] = value({**dict(zip(kernel.arg_names, positional, strict=False)), **kwargs})
            else:
                chosen = _config(kernel, config)
                used = True
                given = set(kwargs) | set(kernel.arg_names[: len(positional)])
                twice = sorted(given & set(chosen.kwargs))
                if twice:
                    raise RecordError(
                        f"{', '.join(twice)} given as an argument and by the configuration",
                        path="config",
                        hint="leave it to the configuration",
                    )
                kwargs |= chosen.all_kwargs()
                stages = chosen.num_stages
                if chosen.pre_hook is not None:
                    notes.append("the configuration's pre_hook was not run")
            kernel = kernel.fn
        if config is not None and not used:
            raise RecordError("a configuration for a kernel without autotuner", path="config", hint="use kwargs")
        function = getattr(kernel, "fn", None)
        if not inspect.isfunction(function):
            raise RecordError(f"{kernel!r} is no Triton kernel", path="kernel", hint="decorate it with triton.jit")
        signature = inspect.signature(function)
        known = {k: v for k, v in kwargs.items() if k in signature.parameters}
        try:
            bound = signature.bind(*positional, **known)
        except TypeError as e:
            raise RecordError(f"{function.__name__}: {e}", path="args") from e
        bound.apply_defaults()
        constexprs = frozenset(
            n for n in signature.parameters if _normalize_ty(function.__annotations__.get(n)) == "constexpr"
        )
        tensors = _Tensors()
        named = dict(bound.arguments)
        arguments = {n: v if n in constexprs else tensors.argument(n, v) for n, v in named.items()}
        constants = {n: v for n, v in named.items() if isinstance(v, bool | int | float | str)}
        return cls(
            function,
            arguments,
            {**kwargs, **named},
            constexprs,
            tensors.found,
            None if stages is None else int(stages),
            notes,
            constants,
        )


def _config(tuner: Any, config: Any) -> Any:
    """The configuration that is meant."""
    if config is not None:
        return config
    if len(tuner.configs) == 1:
        return tuner.configs[0]
    raise RecordError(
        f"the autotuner has {len(tuner.configs)} configurations", path="config", hint="say which one to record"
    )


class _Tensors:
    """The tensor arguments of a launch; one that is passed twice counts once."""

    def __init__(self) -> None:
        self.found: list[tuple[Source, tuple[int, ...]]] = []
        self.known: dict[tuple[Any, ...], int] = {}

    def argument(self, name: str, value: Any) -> Any:
        """The argument as the interpreter takes it."""
        if isinstance(value, tuple):
            items = [self.argument(f"{name}_{i}", v) for i, v in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if all(hasattr(value, a) for a in ("base", "shape", "strides", "block_shape", "padding")):
            return DescriptorArgument(
                self.tensor(name, value.base),
                tuple(value.shape),
                tuple(value.strides),
                tuple(value.block_shape),
                value.padding,
            )
        if isinstance(value, TensorSpec) or (hasattr(value, "dtype") and hasattr(value, "shape") and value.shape != ()):
            return self.tensor(name, value)
        if hasattr(value, "data_ptr"):
            return self.tensor(name, value)
        return value

    def tensor(self, name: str, value: Any) -> TensorArgument:
        import numpy as np
        import triton.language as tl

        dtype_name = str(value.dtype).rsplit(".", 1)[-1]
        kind = _DTYPES.get(dtype_name)
        if kind is None:
            raise RecordError(f"elements of type {dtype_name}", path=name, hint="use a type that Triton knows")
        dtype = getattr(tl, kind)
        if not isinstance(value, TensorSpec) and hasattr(value, "base") and hasattr(value.base, "data_ptr"):
            value = value.base  # A tensor seen as another type.
        sizes = value.shape if hasattr(value, "shape") else value.size()
        shape = tuple(int(n) for n in sizes)
        data: Any = None
        key: tuple[Any, ...] = (id(value),)
        if isinstance(value, TensorSpec):
            strides = value.strides if value.strides is not None else _row_major(shape)
        elif isinstance(value, np.ndarray):
            strides = tuple(s // value.itemsize for s in value.strides)
            key = (value.__array_interface__["data"][0], shape, strides, kind)
        else:
            strides = tuple(int(s) for s in value.stride())
            key = (int(value.data_ptr()), shape, strides, kind)
        if len(strides) != len(shape) or any(s < 0 for s in strides):
            raise RecordError(f"strides {strides} of a tensor of shape {shape}", path=name, hint="use none below 0")
        empty = any(n == 0 for n in shape)
        length = 0 if empty else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if not empty and isinstance(value, np.ndarray):
            data = np.lib.stride_tricks.as_strided(value, (length,), (value.itemsize,), writeable=False)
        elif not empty and not isinstance(value, TensorSpec):
            data = _torch_data(value, length)
        # A shape alone is nobody's tensor: given twice, it means two.
        if key in self.known and not isinstance(value, TensorSpec):
            return TensorArgument(self.known[key])
        index = self.known[key] = len(self.found)
        extents = shape if strides == _row_major(shape) and shape else (length,)
        self.found.append((Source(name, dtype, length, data), extents))
        return TensorArgument(index)


def _torch_data(value: Any, length: int) -> Any:
    """The elements of a torch tensor that lies in this machine's memory; of others the shape is enough."""
    if str(getattr(value, "device", "")) != "cpu" or not hasattr(value, "as_strided"):
        return None
    flat = value.detach().as_strided((length,), (1,))
    try:
        return flat.numpy()
    except TypeError:
        import torch

        # numpy lacks the type; Triton's interpreter keeps its bits in integers.
        return flat.view({1: torch.uint8, 2: torch.int16}[flat.element_size()]).numpy()


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _grid(grid: Any, named: dict[str, Any]) -> tuple[Program, int]:
    found = grid(dict(named)) if callable(grid) else grid
    extents = tuple(int(n) for n in found) if isinstance(found, Sequence) else (int(found),)
    if not 1 <= len(extents) <= 3 or any(n < 1 for n in extents):
        raise RecordError(f"a grid of {extents}", path="grid", hint="give 1 to 3 extents of 1 or more")
    x, y, z = (*extents, 1, 1)[:3]
    return (x, y, z), len(extents)


def _program(program: Sequence[int], grid: Program) -> Program:
    ids = (*(int(p) for p in program), 0, 0, 0)[: max(3, len(program))]
    if len(ids) != 3 or any(not 0 <= p < n for p, n in zip(ids, grid, strict=True)):
        raise RecordError(f"program {tuple(program)} of a grid of {grid}", path="program", hint="ids count from 0")
    return ids


def _words(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def _describe(name: str, item: Item, grid: Program, call: _Call) -> dict[str, Any]:
    """What one program did, in plain numbers."""
    args: list[dict[str, Any]] = []
    for key, value in call.arguments.items():
        if isinstance(value, TensorArgument):
            source, extents = call.tensors[value.index]
            elem = max(8, int(source.dtype.primitive_bitwidth)) // 8
            args.append(
                {
                    "name": key,
                    "kind": "tensor",
                    "dtype": str(call.named[key].dtype).rsplit(".", 1)[-1],
                    "shape": list(extents),
                    "stride": list(_row_major(extents)),
                    "elem": elem,
                    "nbytes": source.length * elem,
                }
            )
        elif isinstance(value, bool | int | float | str):
            args.append({"name": key, "kind": "scalar", "value": value})
    ops: list[dict[str, Any]] = []
    counted: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def flush() -> None:
        if counted:
            rows = sorted(counted.items(), key=lambda e: (e[0][0], str(e[0][1])))
            ops.append({"op": "compute", "ew": [{"fn": f, "shape": list(s), "n": n} for (f, s), n in rows]})
            counted.clear()

    for op in item.ops:
        match op:
            case Vector():
                counted.update((o.function, o.shape) for o in op.ops)
            case Work() if op.kind == "reduce":
                counted[op.function, op.shape] += 1
            case Work():
                flush()
                m, n, k, batch = op.shape
                name_of = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}
                dot = {"op": "dot", "m": m, "n": n, "k": k, "dt": name_of.get(op.function, op.function)}
                ops.append(dot if batch == 1 else dot | {"batch": batch})
            case Access():
                flush()
                ops.append(_access(op))
    flush()
    return {"kernel": name, "grid": list(grid), "pid": list(item.program), "args": args, "ops": ops}


def _access(op: Access) -> dict[str, Any]:
    elem, r = op.bits // 8, op.region
    out: dict[str, Any] = {"op": op.kind, "arg": op.tensor, "elem": elem, "total": math.prod(r.shape), "valid": r.valid}
    strides = r.strides
    if op.data_dependent or strides is None:
        return out | {"gather": True, "dims": list(r.shape), "lines64": r.lines}
    out["offset_bytes"] = None if r.base is None else r.base * elem
    return out | {"dims": list(r.shape), "stride_bytes": [s * elem for s in strides]}

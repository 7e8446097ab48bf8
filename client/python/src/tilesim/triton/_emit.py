"""Writes what every program does as a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import builder as b
from ..expr import IntLike, ceil_div, expr, logical_not
from ._costs import Costs
from ._expr import Expr, Path
from ._fold import (
    FoldedBlock,
    FoldedBranch,
    FoldedLoop,
    FoldedVector,
    FoldedWork,
    Piece,
    Transfer,
)
from ._regions import LINE_BYTES

__all__ = ["Declared", "emit"]

#: Expressions that get a name, at most; a trace nests few.
MAX_NAMES = 8


@dataclass(frozen=True)
class Declared:
    """A tensor of the trace."""

    name: str
    bits: int
    extents: tuple[int, ...]


@dataclass
class _Place:
    """Where the result of a node is kept: the buffers that its readers read."""

    buffers: list[b.Buffer]
    #: The buffer's companion, written once it may be filled again.
    free: b.Buffer | None = None


@dataclass
class _Stage:
    """One of the buffer sets that a pipelined loop uses in turn."""

    places: dict[int, _Place] = field(default_factory=dict)


class _Writer:
    def __init__(
        self,
        out: b.TraceBuilder,
        root: FoldedBlock,
        tensors: Sequence[Declared],
        costs: Costs,
        stages: int,
        fixed: tuple[tuple[int, int, int], tuple[int, int, int]] | None,
    ) -> None:
        self.out = out
        self.root = root
        self.costs = costs
        self.stages = stages
        #: Program and grid, where the trace is of one program only.
        self.fixed = fixed
        self.declared = tensors
        self.names: dict[Path, IntLike] = {}
        #: Expressions that have a name.
        self.known: dict[Expr, IntLike] = {}
        self.tensors: list[b.Tensor] = []
        self.tiles: dict[int, b.Tile] = {}
        self.places: dict[int, _Place] = {}
        self.named: set[str] = set()
        self.staged: dict[int, list[_Stage]] = {}
        #: What a reader of a pipelined buffer also writes, by reader.
        self.frees: dict[int, list[b.Buffer]] = {}
        self.release: b.Tile | None = None
        self.semaphores = 0
        self.analytic = False
        self.loose = False

    # Declarations.

    def declare(self) -> None:
        roles: dict[int, set[str]] = {}
        for node in self.root.walk():
            if isinstance(node, Transfer):
                roles.setdefault(node.first.tensor, set()).add(node.first.kind)
        for i, tensor in enumerate(self.declared):
            seen = roles.get(i, {"load"})
            role: Literal["in", "out", "inout"] = "inout" if len(seen) == 2 else "out" if "store" in seen else "in"
            self.tensors.append(self.out.tensor(tensor.name, tensor.bits, role, list(tensor.extents)))
        self.loose = any(self._outside(n) for n in self.root.walk() if isinstance(n, Transfer))
        if self.loose:
            self.out.bounds_off()
        counts: dict[str, int] = {}
        for node in self.root.walk():
            if isinstance(node, FoldedLoop):
                self._stage_buffers(node)
        for node in self.root.walk():
            match node:
                case Transfer() if node.first.kind == "load":
                    if id(node) not in self.staged:
                        self.places[id(node)] = self._load_place(node, self._load_name(node))
                case FoldedWork() | FoldedVector():
                    kind = "vector" if isinstance(node, FoldedVector) else node.first.kind
                    number = counts[kind] = counts.get(kind, -1) + 1
                    size = sum(node.results.values())
                    buffers = [self.out.buffer(f"{kind}{number}", size)] if node.results else []
                    self.places[id(node)] = _Place(buffers)
                    self.tiles[id(node)] = self._tile(f"{kind}{number}", node)

    def _load_name(self, node: Transfer) -> str:
        return f"{self.declared[node.first.tensor].name}_{node.first.line}"

    def _load_place(self, node: Transfer, name: str) -> _Place:
        size = node.results.get(0, node.first.bits // 8 * _product(node.first.region.shape))
        first = self.out.buffer(self._free_name(name), size)
        # The parts of a load that wraps around fill one buffer; its readers wait for each.
        rest = [self.out.buffer(self._free_name(f"{name}_part"), 0) for _ in node.pieces[1:]]
        return _Place([first, *rest])

    def _free_name(self, name: str) -> str:
        unique, n = name, 1
        while unique in self.named:
            n += 1
            unique = f"{name}_{n}"
        self.named.add(unique)
        return unique

    def _tile(self, name: str, node: FoldedWork | FoldedVector) -> b.Tile:
        unit: b.Unit
        if isinstance(node, FoldedVector):
            unit, (cycles, formula) = "vector", self.costs.vector(node.ops)
        elif node.first.kind == "dot":
            m, n, k, batch = node.first.shape
            unit, (cycles, formula) = "matmul", self.costs.dot(m, n, k, batch)
        else:
            unit, (cycles, formula) = "cross_lane", self.costs.reduction(node.first.shape, node.first.bits)
        given = self.costs.cycles.get(name)
        if given is not None:
            return self.out.tile(name, unit, given, source="declared")
        self.analytic = True
        return self.out.tile(name, unit, cycles, analytic=formula)

    def _outside(self, node: Transfer) -> bool:
        """Whether so many whole lines may be more than the tensor has."""
        if not any(p.lines is not None for p in node.pieces):
            return False
        tensor = self.declared[node.first.tensor]
        most = max(r.lines for _, r in node.instances)
        return most * LINE_BYTES * 8 > tensor.bits * _product(tensor.extents)

    # Pipelined loops.

    def _stage_buffers(self, loop: FoldedLoop) -> None:
        """Buffers in turn for the loads of a loop that is pipelined."""
        stages = self.stages if loop.stages is None else loop.stages
        nodes = loop.body.nodes or []
        if stages < 2 or any(isinstance(n, FoldedLoop) for n in loop.body.walk()):
            return
        products = any(isinstance(n, FoldedWork) and n.first.kind == "dot" for n in loop.body.walk())
        stored = {n.first.tensor for n in loop.body.walk() if isinstance(n, Transfer) and n.first.kind == "store"}
        loads = [
            n
            for n in nodes
            if isinstance(n, Transfer)
            and n.first.kind == "load"
            and not n.data_dependent
            and not n.reads
            and n.first.tensor not in stored
        ]
        if not loads or not (products or loop.stages is not None):
            return
        sets = [_Stage() for _ in range(stages)]
        for load in loads:
            name = self._load_name(load)
            for i, stage in enumerate(sets):
                place = self._load_place(load, f"{name}_{i}")
                place.free = self.out.buffer(self._free_name(f"{name}_{i}_free"), 0)
                stage.places[id(load)] = place
            self.staged[id(load)] = sets
        self.staged[id(loop)] = sets
        if products and self.release is None:
            self.release = self.out.tile("release", "vector", 0)

    # Statements.

    def name_shared(self) -> None:
        """Names what several statements compute from the program ids alone."""
        counts: Counter[Expr] = Counter()

        def visit(e: Expr) -> None:
            counts[e] += 1
            for child in e.children:
                visit(child)

        for e in _expressions(self.root):
            visit(e)
        shared = [e for e, n in counts.items() if n > 1 and e.size > 3 and e.varies and not e.paths]
        shared.sort(key=lambda e: (-(counts[e] - 1) * e.size, e.size))
        for number, e in enumerate(sorted(shared[:MAX_NAMES], key=lambda e: e.size)):
            self.known[e] = self.out.let(f"s{number}", self.lower(e))

    def lower(self, e: Expr) -> IntLike:
        return e.lower(self._leaf, self.known)

    def _leaf(self, e: Expr) -> IntLike:
        if e.op == "var":
            path = e.args[0]
            assert isinstance(path, tuple)
            return self.names[path]
        axis = e.args[0]
        assert isinstance(axis, int)
        if self.fixed is not None:
            return self.fixed[e.op == "grid"][axis]
        ids = self.out.pids if e.op == "pid" else self.out.grid
        return ids[axis] if axis < len(ids) else int(e.op == "grid")

    def block(self, block: FoldedBlock, skip: frozenset[int] = frozenset()) -> None:
        for node in block.nodes or []:
            if id(node) in skip:
                continue
            match node:
                case Transfer():
                    self.transfer(node, None)
                case FoldedVector() | FoldedWork():
                    self.compute(node)
                case FoldedLoop():
                    self.loop(node)
                case FoldedBranch():
                    self.branch(node)

    def read(self, values: Sequence[tuple[Any, int]]) -> list[b.Buffer]:
        found: dict[str, b.Buffer] = {}
        for node, _ in values:
            for buffer in self.places[id(node)].buffers if id(node) in self.places else []:
                found.setdefault(buffer.name, buffer)
        return list(found.values())

    def compute(self, node: FoldedWork | FoldedVector) -> None:
        own = self.places[id(node)].buffers
        reads = self.read(node.reads)
        if isinstance(node, FoldedWork):
            # A product adds to what it wrote before; only sums from elsewhere are read.
            more = [v for v in self.read(node.adds_to) if v not in own and v not in reads]
            reads = reads + more
        self.out.compute(self.tiles[id(node)], reads=reads, writes=[*own, *self.frees.get(id(node), [])])

    def transfer(self, node: Transfer, semaphore: int | None) -> None:
        tensor = self.tensors[node.first.tensor]
        bits = node.first.bits
        same = self.declared[node.first.tensor].bits == bits
        reads = self.read(node.reads)
        place = self.places.get(id(node))
        if place is not None and place.free is not None:
            reads.append(place.free)
        move = self.out.load if node.first.kind == "load" else self.out.store
        for i, piece in enumerate(node.pieces):
            # One wait stands for all parts.
            writes = [] if place is None else [place.buffers[i if semaphore is None else 0]]
            move(
                tensor,
                self.lower(piece.offset),
                self.dims(piece),
                semaphore=semaphore,
                reads=reads,
                writes=writes,
                lines=None if piece.lines is None else (self.lower(piece.lines), LINE_BYTES),
                bits=None if same else bits,
            )

    def dims(self, piece: Piece) -> list[b.Dim]:
        out: list[b.Dim] = []
        for d in piece.dims:
            stride = self.lower(d.stride)
            out.append((d.extent, stride) if d.valid is None else (d.extent, stride, self.lower(d.valid)))
        return out

    def branch(self, node: FoldedBranch) -> None:
        condition = self.lower(node.condition)
        if node.then.nodes:
            with self.out.when(condition):
                self.block(node.then)
            if node.otherwise.nodes:
                with self.out.otherwise():
                    self.block(node.otherwise)
        elif node.otherwise.nodes:
            with self.out.when(logical_not(condition)):
                self.block(node.otherwise)

    def loop(self, node: FoldedLoop) -> None:
        if not node.body.nodes:
            return
        assert node.bounds is not None
        lo, hi, step = (self.lower(e) for e in node.bounds)
        if id(node) in self.staged:
            self.pipelined(node, lo, hi, step)
            return
        with self.out.loop(lo, hi, step, name="k") as k:
            self.names[node.path] = k
            self.block(node.body)

    def pipelined(self, node: FoldedLoop, lo: IntLike, hi: IntLike, step: IntLike) -> None:
        """Loads `stages - 1` iterations ahead; buffers are filled again once they have been read."""
        sets = self.staged[id(node)]
        loads = [n for n in node.body.nodes or [] if isinstance(n, Transfer) and id(n) in sets[0].places]
        elements = sum(_product(tuple(d.extent for d in p.dims)) for n in loads for p in n.pieces)
        base, ahead = self.semaphores, len(sets) - 1
        self.semaphores += len(sets)
        span = hi if _is(lo, 0) else hi - lo if isinstance(hi, int) and isinstance(lo, int) else expr(hi) - lo
        steps = self.out.let("steps", span if _is(step, 1) else ceil_div(span, step))

        def at(count: IntLike) -> IntLike:
            return _plus(_times(count, step), lo)

        def fill(stage: int, count: IntLike) -> None:
            self.names[node.path] = self.out.let("k", at(count))
            self.places |= sets[stage].places
            for load in loads:
                self.transfer(load, base + stage)

        for i in range(ahead):
            with self.out.when(expr(i) < steps):
                fill(i, i)
        with self.out.loop(0, steps, len(sets), name="round") as first:
            for i in range(len(sets)):
                now = _plus(first, i)
                with self.out.when(expr(now) < steps) if i else nullcontext():
                    with self.out.when(expr(_plus(first, i + ahead)) < steps):
                        fill((i + ahead) % len(sets), _plus(first, i + ahead))
                    self.names[node.path] = self.out.let("k", at(now))
                    self.places |= sets[i].places
                    self.out.wait(base + i, elements)
                    self._consume(node, sets[i])

    def _consume(self, node: FoldedLoop, stage: _Stage) -> None:
        """The rest of an iteration; the last reader of each buffer says that it may be filled again."""
        released: list[b.Buffer] = []
        for load, place in stage.places.items():
            assert place.free is not None
            last = None
            for n in node.body.walk():
                if isinstance(n, FoldedWork | FoldedVector) and any(id(v) == load for v, _ in n.reads):
                    last = n
            if last is not None:
                self.frees.setdefault(id(last), []).append(place.free)
                if isinstance(last, FoldedWork) and last.first.kind == "dot":
                    released.append(place.free)
        self.block(node.body, frozenset(stage.places))
        self.frees.clear()
        if released and self.release is not None:
            # A product gives its operands back when it has completed, not when it is issued.
            self.out.compute(self.release, reads=released, writes=released)


def _expressions(block: FoldedBlock) -> Iterator[Expr]:
    """The expressions of a block that are evaluated whenever it is run."""
    for node in block.nodes or []:
        match node:
            case Transfer():
                for piece in node.pieces:
                    yield piece.offset
                    yield from (piece.lines,) if piece.lines is not None else ()
                    for dim in piece.dims:
                        yield dim.stride
                        yield from (dim.valid,) if dim.valid is not None else ()
            case FoldedLoop():
                yield from node.bounds or ()
                yield from _expressions(node.body)
            case FoldedBranch():
                yield node.condition


def _is(value: IntLike, number: int) -> bool:
    return isinstance(value, int) and value == number


def _plus(a: IntLike, b: IntLike) -> IntLike:
    return b if _is(a, 0) else a if _is(b, 0) else a + b


def _times(a: IntLike, b: IntLike) -> IntLike:
    return a if _is(b, 1) else b if _is(a, 1) else 0 if _is(a, 0) or _is(b, 0) else a * b


def _product(extents: tuple[int, ...]) -> int:
    out = 1
    for extent in extents:
        out *= extent
    return out


def emit(
    block: FoldedBlock,
    kernel: str,
    tensors: Sequence[Declared],
    axes: int,
    costs: Costs,
    stages: int,
    origins: Mapping[str, str],
    fixed: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None,
) -> b.TraceBuilder:
    """The trace. `fixed`: program and grid, if it is of one program alone."""
    out = b.TraceBuilder(kernel, axes=axes, producer="tilesim.triton.record")
    for key, value in origins.items():
        out.origin(key, value)
    writer = _Writer(out, block, tensors, costs, stages, fixed)
    writer.declare()
    if writer.analytic:
        out.measured(
            lanes=costs.lanes,
            vector_bits=costs.vector_bits,
            array_rows=costs.array_rows,
            array_cols=costs.array_cols,
        )
    out.dispatch(order=tuple(reversed(range(axes))))
    if fixed is None:
        writer.name_shared()
    writer.block(block)
    return out

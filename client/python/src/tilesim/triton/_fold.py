"""From what some programs did to what every program does.

The blocks of the recorded programs are laid over one another: each load, product, loop ... becomes one
node with an instance per program and iteration. Then every number of a node (offset, stride, valid
extent, loop bound) becomes an expression: a constant; affine in a few of the expressions that the kernel
computed itself (or in the program ids and loop variables, which are among them); and for extents such
an expression cut off at 0 and at the block's extent.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ._expr import Env, Expr, Path, affine, clamp, const
from ._interpret import Access, Block, Branch, Item, Loop, Op, RecordError, Value, Vector, Work
from ._regions import LINE_BYTES, Region

__all__ = [
    "Dim",
    "FoldedBlock",
    "FoldedBranch",
    "FoldedLoop",
    "FoldedVector",
    "FoldedWork",
    "Mismatch",
    "Piece",
    "Transfer",
    "fold",
]

#: Terms of an affine expression that are tried in every combination.
MAX_TERMS = 3

#: Expressions of the kernel's own that are tried, simplest first.
MAX_FEATURES = 48

#: What to do when no expression is found.
ALONE = "record single programs with every='program', or keep what the kernel does independent of its data"

#: Rows of a system of equations.
SAMPLE = 48


class Mismatch(RecordError):
    """What was found for some programs does not hold for another."""

    def __init__(self, message: str, program: tuple[int, int, int], irregular: bool = False) -> None:
        super().__init__(message, hint=ALONE)
        self.program = program
        #: Whether it took other steps, rather than the same ones with other numbers.
        self.irregular = irregular


@dataclass
class Dim:
    """One dimension of a piece of a transfer; `valid` `None`: all."""

    extent: int
    stride: Expr
    valid: Expr | None


@dataclass
class Piece:
    """What one transfer op moves: a strided box, or so many lines."""

    offset: Expr
    dims: list[Dim]
    #: Distinct lines, for a gather.
    lines: Expr | None = None


@dataclass(eq=False)
class Transfer:
    """A load or store of every program."""

    first: Access
    instances: list[tuple[Env, Region]] = field(default_factory=list)
    reads: list[tuple[Any, int]] = field(default_factory=list)
    #: Bytes of each result that others use.
    results: dict[int, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    data_dependent: bool = False


@dataclass(eq=False)
class FoldedWork:
    """A product or reduction of every program."""

    first: Work
    reads: list[tuple[Any, int]] = field(default_factory=list)
    adds_to: list[tuple[Any, int]] = field(default_factory=list)
    results: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class FoldedVector:
    """Elementwise work of every program."""

    ops: tuple[Op, ...]
    line: int
    reads: list[tuple[Any, int]] = field(default_factory=list)
    results: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class FoldedLoop:
    """A loop of every program."""

    path: Path
    line: int
    stages: int | None
    symbols: tuple[Expr | None, Expr | None, Expr | None]
    body: FoldedBlock
    instances: list[tuple[Env, tuple[int, int, int]]] = field(default_factory=list)
    bounds: tuple[Expr, Expr, Expr] | None = None


@dataclass(eq=False)
class FoldedBranch:
    """A condition of every program."""

    condition: Expr
    path: Path
    line: int
    then: FoldedBlock
    otherwise: FoldedBlock
    instances: list[tuple[Env, bool]] = field(default_factory=list)


@dataclass(eq=False)
class FoldedBlock:
    """What every program does in order; `None` until a program has been here."""

    nodes: list[Transfer | FoldedWork | FoldedVector | FoldedLoop | FoldedBranch] | None = None

    def walk(self) -> Iterable[Any]:
        """Every node, outer ones first."""
        for node in self.nodes or []:
            yield node
            if isinstance(node, FoldedLoop):
                yield from node.body.walk()
            elif isinstance(node, FoldedBranch):
                yield from node.then.walk()
                yield from node.otherwise.walk()


class _Layer:
    """Lays one program's blocks over the folded ones."""

    def __init__(self, item: Item, grid: tuple[int, int, int]) -> None:
        self.item = item
        self.grid = grid
        self.places: dict[int, Any] = {}
        self.loops: dict[Path, int] = {}

    def env(self) -> Env:
        return Env(self.item.program, self.grid, dict(self.loops))

    def irregular(self, line: int, why: str) -> Mismatch:
        return Mismatch(
            f"line {line}: {why} in program {self.item.program} than elsewhere "
            f"(iterations {list(self.loops.values())})",
            self.item.program,
            irregular=True,
        )

    def block(self, into: FoldedBlock, block: Block) -> None:
        if into.nodes is None:
            into.nodes = [self.start(node) for node in block.nodes]
        if len(into.nodes) != len(block.nodes):
            line = next((n.line for n in block.nodes[len(into.nodes) :]), 0)
            raise self.irregular(line, f"{len(block.nodes)} steps instead of {len(into.nodes)}")
        for folded, node in zip(into.nodes, block.nodes, strict=True):
            self.node(folded, node)

    def start(self, node: Any) -> Any:
        match node:
            case Access():
                return Transfer(node)
            case Work():
                return FoldedWork(node)
            case Vector():
                return FoldedVector(tuple(node.ops), node.line)
            case Loop():
                return FoldedLoop(node.path, node.line, node.stages, node.symbols, FoldedBlock())
            case Branch():
                return FoldedBranch(node.condition, node.block.path[:-1], node.line, FoldedBlock(), FoldedBlock())
        raise AssertionError(node)

    def node(self, folded: Any, node: Any) -> None:
        match folded, node:
            case Transfer(), Access():
                a, b = folded.first, node
                if (a.kind, a.tensor, a.bits, a.region.shape) != (b.kind, b.tensor, b.bits, b.region.shape):
                    raise self.irregular(node.line, f"another {node.kind}")
                folded.instances.append((self.env(), node.region))
                folded.data_dependent |= node.data_dependent
                self.link(folded, node)
            case FoldedWork(), Work():
                if _work(folded.first) != _work(node):
                    raise self.irregular(node.line, "another product or reduction")
                self.link(folded, node)
                self.values(folded.adds_to, node.adds_to)
            case FoldedVector(), Vector():
                if folded.ops != tuple(node.ops):
                    raise self.irregular(node.line, "other elementwise work")
                self.link(folded, node)
            case FoldedLoop(), Loop():
                if folded.path != node.path:
                    raise self.irregular(node.line, "another loop")
                if folded.symbols != node.symbols:
                    pairs = zip(folded.symbols, node.symbols, strict=True)
                    folded.symbols = tuple(a if a == b else None for a, b in pairs)  # type: ignore[assignment]
                folded.instances.append((self.env(), node.bounds))
                for value, block in node.iterations:
                    self.loops[node.path] = value
                    self.block(folded.body, block)
                self.loops.pop(node.path, None)
            case FoldedBranch(), Branch():
                if folded.condition != node.condition:
                    raise self.irregular(node.line, "another condition")
                folded.instances.append((self.env(), node.taken))
                self.block(folded.then if node.taken else folded.otherwise, node.block)
            case _:
                raise self.irregular(node.line, "another step")

    def link(self, folded: Any, node: Any) -> None:
        self.places[id(node)] = folded
        self.values(folded.reads, node.reads)

    def values(self, into: list[tuple[Any, int]], values: list[Value]) -> None:
        for value in values:
            place = self.places.get(id(value.producer))
            if place is None:
                continue
            place.results[value.ordinal] = max(value.bytes, place.results.get(value.ordinal, 0))
            if (place, value.ordinal) not in into:
                into.append((place, value.ordinal))


def _work(node: Work) -> tuple[Any, ...]:
    return node.kind, node.shape, node.function, node.bits


# Numbers to expressions.


class _NoFit(Exception):
    pass


def _unrecognised(what: str) -> RecordError:
    return RecordError(
        f"{what} depends on the program id or the iteration in a way that was not recognised", hint=ALONE
    )


class _System:
    """The instances of one node, and the expressions its numbers may be made of."""

    def __init__(self, scalars: Mapping[Expr, bool], envs: Sequence[Env], kept: Sequence[int]) -> None:
        self.kept = np.array(kept, dtype=np.int64)
        scope = set(envs[0].loops) if envs else set()
        self.features: list[Expr] = []
        columns: list[Any] = []
        seen: set[bytes] = set()
        axes = [Expr("pid", (axis,)) for axis in range(3)]
        loops = [s for s in scalars if s.op == "var" and s.paths <= scope]
        # First what the kernel itself made addresses and masks of.
        direct = [e for e, used in scalars.items() if used]
        for expr in itertools.chain(direct, loops, axes, sorted(scalars, key=lambda e: e.size)):
            if not expr.paths <= scope:
                continue
            try:
                column = np.array([expr.eval(e) for e in envs], dtype=np.int64)
            except (ZeroDivisionError, ValueError, OverflowError):
                continue
            key = column.tobytes()
            if key in seen or len(self.features) >= MAX_FEATURES or (column[self.kept] == column[self.kept][0]).all():
                continue
            seen.add(key)
            self.features.append(expr)
            columns.append(column)
        self.x = np.stack(columns, axis=1) if columns else np.zeros((len(envs), 0), dtype=np.int64)

    def affine(self, y: Any, rows: Any) -> Expr:
        """The simplest affine expression that gives `y` (as long as `rows`) at those rows."""
        constant, terms = self._affine(y, self.x[rows])
        return affine(constant, [(c, self.features[i]) for i, c in terms])

    def _affine(self, y: Any, x: Any) -> tuple[int, list[tuple[int, int]]]:
        if y.size == 0 or bool((y == y[0]).all()):
            return int(y[0]) if y.size else 0, []
        for i in range(x.shape[1]):
            if bool((x[:, i] == y).all()):
                return 0, [(i, 1)]
        pick = _spread(x, y)
        sub, target = x[pick].astype(np.float64), y[pick].astype(np.float64)
        usable = [i for i in range(x.shape[1]) if bool((sub[:, i] != sub[0, i]).any())]
        for terms in range(1, MAX_TERMS + 1):
            combinations = itertools.combinations(usable, terms)
            solved = (f for f in (_solve(x, y, sub, target, chosen) for chosen in combinations) if f is not None)
            # Of equals the one with the smallest factors: those are the kernel's own strides.
            best = min(solved, key=_weight, default=None) if terms < MAX_TERMS else next(solved, None)
            if best is not None:
                return best
        found = _solve(x, y, sub, target, tuple(usable))
        if found is None:
            raise _NoFit
        return found

    def extent(self, y: Any, most: int, rows: Any) -> Expr | None:
        """An expression of valid extents, at most `most`; `None`: always all."""
        if bool((y == most).all()):
            return None
        x = self.x[rows]
        if bool((y == y[0]).all()):
            return const(int(y[0]))
        inside = (y > 0) & (y < most)
        for constant, terms in self._inner(y, x, inside, most):
            value = constant + sum(c * x[:, i] for i, c in terms)
            if bool((np.clip(value, 0, most) == y).all()):
                return clamp(most, affine(int(constant), [(int(c), self.features[i]) for i, c in terms]))
        return self.affine(y, rows)

    def _inner(self, y: Any, x: Any, inside: Any, most: int) -> Iterable[tuple[int, list[tuple[int, int]]]]:
        yi, xi = y[inside], x[inside]
        slopes = (1, -1, most, -most)
        columns = range(x.shape[1])
        if yi.size:
            if len(np.unique(yi)) > 1:
                with contextlib.suppress(_NoFit):
                    yield self._affine(yi, xi)
            for i in columns:
                for slope in slopes:
                    if bool((yi - slope * xi[:, i] == yi[0] - slope * xi[0, i]).all()):
                        yield int(yi[0] - slope * xi[0, i]), [(i, slope)]
            for i, j in itertools.combinations(columns, 2):
                for a, b in itertools.product(slopes, repeat=2):
                    rest = yi - a * xi[:, i] - b * xi[:, j]
                    if bool((rest == rest[0]).all()):
                        yield int(rest[0]), [(i, a), (j, b)]
            return
        # All or nothing: any threshold between will do.
        singles = [[(i, a)] for i in columns for a in slopes]
        pairs = [[*p, *q] for p, q in itertools.combinations(singles, 2) if p[0][0] != q[0][0]]
        for terms in singles + pairs:
            value = sum(c * x[:, i] for i, c in terms)
            all_in, none = value[y == most], value[y == 0]
            if all_in.size and none.size and int(all_in.min()) - int(none.max()) >= most:
                yield most - int(all_in.min()), terms


def _spread(x: Any, y: Any) -> Any:
    """Some rows that differ, from all over."""
    both = np.concatenate([x, y[:, None]], axis=1)
    _, first = np.unique(both, axis=0, return_index=True)
    first.sort()
    if first.size <= SAMPLE:
        return first
    return first[np.linspace(0, first.size - 1, SAMPLE).astype(np.int64)]


def _solve(x: Any, y: Any, sub: Any, target: Any, chosen: tuple[int, ...]) -> tuple[int, list[tuple[int, int]]] | None:
    columns = list(chosen)
    system = np.column_stack([sub[:, columns], np.ones(len(sub))])
    solution, _, rank, _ = np.linalg.lstsq(system, target, rcond=None)
    if rank < len(columns) + 1 and len(columns) <= MAX_TERMS:
        return None
    whole = np.rint(solution)
    if not bool(np.isfinite(whole).all()) or bool((np.abs(whole) > 2**52).any()):
        return None
    coefficients = whole[:-1].astype(np.int64)
    # The constant is what is left, exactly.
    rest = y - x[:, columns] @ coefficients
    if not bool((rest == rest[0]).all()):
        return None
    return int(rest[0]), [(i, int(c)) for i, c in zip(columns, coefficients, strict=True) if c]


def _weight(found: tuple[int, list[tuple[int, int]]]) -> tuple[int, bool]:
    constant, terms = found
    return sum(abs(c) for _, c in terms), constant != 0


def _rows(instances: Sequence[tuple[Env, Any]], programs: set[tuple[int, int, int]]) -> list[int]:
    rows = [i for i, (env, _) in enumerate(instances) if env.program in programs]
    if not rows:
        raise Mismatch("no program to make expressions from was here", instances[0][0].program)
    return rows


class _Fitter:
    def __init__(self, scalars: Mapping[Expr, bool], programs: set[tuple[int, int, int]], lenient: bool) -> None:
        self.scalars = scalars
        self.programs = programs
        self.lenient = lenient
        self.notes: dict[str, None] = {}

    def number(
        self, system: _System, instances: Sequence[tuple[Env, Any]], get: Callable[[Any], int | None], what: str
    ) -> Expr:
        """The expression of one number, `None` where an instance does not have it."""
        values = [get(v) for _, v in instances]
        known = np.array([v is not None for v in values], dtype=bool)
        y = np.array([0 if v is None else v for v in values], dtype=np.int64)
        rows = system.kept[known[system.kept]]
        try:
            expr = system.affine(y[rows], rows)
        except _NoFit:
            raise _unrecognised(what) from None
        self.check(expr, instances, values, what)
        return expr

    def extent(
        self, system: _System, instances: Sequence[tuple[Env, Any]], get: Callable[[Any], int], most: int, what: str
    ) -> Expr | None:
        """The expression of a valid extent."""
        y = np.array([get(v) for _, v in instances], dtype=np.int64)
        try:
            expr = system.extent(y[system.kept], most, system.kept)
        except _NoFit:
            raise _unrecognised(what) from None
        self.check(const(most) if expr is None else expr, instances, y.tolist(), what)
        return expr

    def check(self, expr: Expr, instances: Sequence[tuple[Env, Any]], values: Sequence[int | None], what: str) -> None:
        """Holds the expression against every instance, those it was not made from included."""
        for (env, _), value in zip(instances, values, strict=True):
            if value is None:
                continue
            try:
                found: int | None = expr.eval(env)
            except (ZeroDivisionError, ValueError, OverflowError):
                found = None
            if found != value:
                raise Mismatch(
                    f"{what} is {value} in program {env.program}, and {found} by what other programs say",
                    env.program,
                )

    def transfer(self, node: Transfer) -> None:
        a = node.first
        what = f"line {a.line}: the {{}} of a {a.kind}"
        instances = node.instances
        system = _System(self.scalars, [e for e, _ in instances], _rows(instances, self.programs))
        boxes = all(r.runs is not None for _, r in instances) and not node.data_dependent
        node.pieces = []
        if not boxes:
            node.pieces.append(self.gather(node, system, what))
            return
        counts = [max(len(r.runs[d]) if r.runs else 0 for _, r in instances) for d in range(len(a.region.shape))]
        for pick in itertools.product(*(range(max(1, c)) for c in counts)):
            node.pieces.append(self.piece(node, system, pick, what))

    def piece(self, node: Transfer, system: _System, pick: tuple[int, ...], what: str) -> Piece:
        """The part of a box in run number `pick[d]` of each dimension."""

        def length(r: Region, d: int) -> int:
            assert r.runs is not None
            return r.runs[d][pick[d]].length if pick[d] < len(r.runs[d]) else 0

        def stride(r: Region, d: int) -> int | None:
            assert r.runs is not None
            return r.runs[d][pick[d]].stride if pick[d] < len(r.runs[d]) else None

        def offset(r: Region) -> int | None:
            if r.base is None or r.runs is None or any(p >= len(r.runs[d]) for d, p in enumerate(pick)):
                return None
            return r.base + sum(r.runs[d][p].start for d, p in enumerate(pick))

        dims = []
        for d, extent in enumerate(node.first.region.shape):
            valid = self.extent(
                system, node.instances, partial(length, d=d), extent, what.format(f"mask, dimension {d},")
            )
            by = self.number(system, node.instances, partial(stride, d=d), what.format(f"stride of dimension {d}"))
            if extent > 1 or valid is not None:
                dims.append(Dim(extent, by, valid))
        return Piece(self.number(system, node.instances, offset, what.format("offset")), dims)

    def gather(self, node: Transfer, system: _System, what: str) -> Piece:
        shape = node.first.region.shape
        try:
            lines = self.number(system, node.instances, lambda r: r.lines, what.format("number of lines"))
        except RecordError:
            if not node.data_dependent and not self.lenient:
                raise
            most = max(r.lines for _, r in node.instances)
            lines = const(most)
            self.notes.setdefault(
                f"line {node.first.line}: a {node.first.kind} whose lines depend on data counts {most} of "
                f"{LINE_BYTES} bytes, the most of the programs recorded"
            )
        dims = [Dim(extent, const(0), None) for extent in shape if extent > 1]
        return Piece(const(0), dims, lines)

    def loop(self, node: FoldedLoop) -> None:
        instances = node.instances
        system = _System(self.scalars, [e for e, _ in instances], _rows(instances, self.programs))
        found = []
        for i, name in enumerate(("first value", "end", "step")):
            what = f"line {node.line}: the {name} of a loop"
            symbol = node.symbols[i]
            values = [b[i] for _, b in instances]
            if symbol is not None:
                self.check(symbol, instances, values, what)
                found.append(symbol)
            else:
                found.append(self.number(system, instances, itemgetter(i), what))
        node.bounds = (found[0], found[1], found[2])

    def branch(self, node: FoldedBranch) -> None:
        values = [int(taken) for _, taken in node.instances]
        truth = Expr("!=", (node.condition, const(0)))
        self.check(truth, node.instances, values, f"line {node.line}: a condition")


@dataclass
class Folded:
    """What every program does."""

    block: FoldedBlock
    notes: list[str]


def unrolled(block: Block) -> Block:
    """The block with the loops that the compiler unrolls written out."""
    nodes: list[Any] = []
    for node in block.nodes:
        if isinstance(node, Loop):
            bodies = [(i, unrolled(body)) for i, body in node.iterations]
            if node.static:
                nodes += [n for _, body in bodies for n in body.nodes]
                continue
            node = replace(node, iterations=bodies)
        elif isinstance(node, Branch):
            node = replace(node, block=unrolled(node.block))
        nodes.append(node)
    return Block(block.path, nodes)


def layer(items: Sequence[Item], grid: tuple[int, int, int]) -> FoldedBlock:
    """Lays the programs over one another, without looking at their numbers."""
    block = FoldedBlock()
    for item in items:
        _Layer(item, grid).block(block, item.block)
    return block


def fold(
    items: Sequence[Item],
    grid: tuple[int, int, int],
    fitted: set[tuple[int, int, int]],
    lenient: bool = False,
) -> Folded:
    """Finds the expressions from the programs `fitted`, and holds them against all `items`.

    `Mismatch` names a program that contradicts them; `RecordError` something that no expression tried
    can say.
    """
    block = layer(items, grid)
    scalars: dict[Expr, bool] = {}
    for item in items:
        for expr, used in item.scalars.items():
            scalars[expr] = used or scalars.get(expr, False)
    fitter = _Fitter(scalars, fitted, lenient)
    for node in block.walk():
        match node:
            case Transfer():
                fitter.transfer(node)
            case FoldedLoop():
                fitter.loop(node)
            case FoldedBranch():
                fitter.branch(node)
    notes = dict.fromkeys(n for item in items for n in item.notes)
    return Folded(block, [*notes, *fitter.notes])

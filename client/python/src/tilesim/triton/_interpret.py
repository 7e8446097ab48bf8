"""Runs one program instance in Triton's interpreter and notes what it does.

The kernel runs with a builder of our own, on pointers that point nowhere: every tensor gets an address
range of its own, so that an address says which tensor it belongs to. Loads give what the caller's tensor
holds (it may decide what a gather touches); stores and products go nowhere, and nothing of the caller's
is written to. Loops and conditions are noted as such, with their bounds as expressions, because the
kernel's `for` and `if` are rewritten to announce themselves. Beside every integer scalar runs the
expression it was computed by; these expressions are what offsets and masks are later fitted with.

Everything replaced in Triton's modules is put back when the run ends, however it ends. One recording
runs at a time in a process.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ._expr import Expr, Path, binary, const, select
from ._regions import Region, region

__all__ = [
    "Access",
    "Block",
    "Branch",
    "Item",
    "Loop",
    "Op",
    "RecordError",
    "Source",
    "Vector",
    "Work",
    "interpret",
]

#: Bytes of address space that each tensor gets; its first element is in the middle.
RANGE = 1 << 44

_lock = threading.RLock()


class RecordError(InvalidInput):
    """A kernel that cannot be recorded: what, where, and what to do about it."""

    default_code = "client.record"


# What a program does.


@dataclass(eq=False)
class Value:
    """A block of data that one op makes and others use."""

    producer: Access | Work | Vector
    #: Which of the producer's results.
    ordinal: int
    bytes: int


@dataclass(eq=False)
class Access:
    """A load or store."""

    kind: str
    #: Index among the tensor arguments.
    tensor: int
    bits: int
    region: Region
    #: Line of the source, 0 if unknown.
    line: int
    reads: list[Value]
    #: Whether loaded data decides what is touched.
    data_dependent: bool = False


@dataclass(eq=False)
class Work:
    """A product (`dot`) or a reduction or scan (`reduce`)."""

    kind: str
    #: m, n, k and batch of a product; the input's shape of a reduction.
    shape: tuple[int, ...]
    function: str
    bits: int
    line: int
    reads: list[Value]
    #: The accumulator of a product.
    adds_to: list[Value] = field(default_factory=list)
    #: Whether it works on data, rather than on addresses and masks.
    data: bool = True


@dataclass(frozen=True)
class Op:
    """An elementwise operation on a block."""

    function: str
    shape: tuple[int, ...]
    bits: int
    #: Whether it works on data, rather than on addresses and masks.
    data: bool


@dataclass(eq=False)
class Vector:
    """Elementwise operations in a row, with no access, product or reduction between."""

    ops: list[Op] = field(default_factory=list)
    line: int = 0
    reads: list[Value] = field(default_factory=list)
    kind: str = "vector"


@dataclass(eq=False)
class Loop:
    """A loop and what each iteration did."""

    path: Path
    bounds: tuple[int, int, int]
    #: The same as expressions, where they are known.
    symbols: tuple[Expr | None, Expr | None, Expr | None]
    line: int
    #: `num_stages` of the loop itself.
    stages: int | None = None
    #: Whether the compiler unrolls it.
    static: bool = False
    iterations: list[tuple[int, Block]] = field(default_factory=list)
    kind: str = "loop"


@dataclass(eq=False)
class Branch:
    """A condition and what was done because of it."""

    condition: Expr
    taken: bool
    block: Block
    line: int
    kind: str = "if"


@dataclass(eq=False)
class Block:
    """What is done in order."""

    path: Path
    nodes: list[Access | Work | Vector | Loop | Branch] = field(default_factory=list)


@dataclass
class Item:
    """What one program instance did."""

    program: tuple[int, int, int]
    block: Block
    #: The ops in order, loops and conditions aside, work on addresses included.
    ops: list[Access | Work | Vector]
    #: Every integer expression the program computed from its ids and loop variables, and whether it
    #: went straight into blocks of addresses or masks.
    scalars: dict[Expr, bool]
    notes: list[str]


@dataclass(frozen=True)
class Source:
    """A tensor argument: its element type, and its elements in memory order if there are any."""

    name: str
    dtype: Any
    #: Elements from the first to the last, in memory order.
    length: int
    data: Any | None


# Values as the interpreter sees them.


@dataclass
class _Meta:
    """What runs beside a handle."""

    expr: Expr | None = None
    #: 0: addresses and masks; 1: data; 2: data that the recording does not have.
    data: int = 0
    values: tuple[Value, ...] = ()


_NONE = _Meta()


def _merge(*groups: tuple[Value, ...] | list[Value]) -> list[Value]:
    seen: dict[int, Value] = {}
    for group in groups:
        for value in group:
            seen.setdefault(id(value), value)
    return list(seen.values())


@dataclass(frozen=True)
class _Condition:
    """A condition that was put together from several."""

    holds: bool
    expr: Expr | None


#: Builder methods that compute on every element, and what the record calls them.
_ELEMENTWISE = {
    **dict.fromkeys(("clampf", "select"), "ternary_op"),
    **dict.fromkeys(
        [
            "si_to_fp",
            "ui_to_fp",
            "fp_to_si",
            "fp_to_ui",
            "fp_ext",
            "fp_trunc",
            "int_cast",
            "fp_to_fp",
        ],
        "cast",
    ),
    **dict.fromkeys(
        [
            "cos",
            "exp",
            "exp2",
            "iabs",
            "floor",
            "ceil",
            "log",
            "log2",
            "precise_sqrt",
            "sqrt",
            "sin",
            "fabs",
            "erf",
            "rsqrt",
        ],
        "unary_op",
    ),
    **dict.fromkeys(("fma", "histogram", "gather"), "other_op"),
    **dict.fromkeys(
        [
            "fadd",
            "fmul",
            "fdiv",
            "frem",
            "fsub",
            "mul",
            "precise_divf",
            "sdiv",
            "udiv",
            "srem",
            "urem",
            "add",
            "sub",
            "shl",
            "lshr",
            "ashr",
            "minsi",
            "minui",
            "minimumf",
            "minnumf",
            "maxsi",
            "maxui",
            "maximumf",
            "maxnumf",
            "icmpSLE",
            "icmpSLT",
            "icmpSGE",
            "icmpSGT",
            "icmpULE",
            "icmpULT",
            "icmpUGE",
            "icmpUGT",
            "icmpEQ",
            "icmpNE",
            "fcmpOLT",
            "fcmpOGT",
            "fcmpOLE",
            "fcmpOGE",
            "fcmpOEQ",
            "fcmpONE",
            "fcmpULT",
            "fcmpUGT",
            "fcmpULE",
            "fcmpUGE",
            "fcmpUEQ",
            "fcmpUNE",
            "and",
            "xor",
            "or",
            "umulhi",
        ],
        "binary_op",
    ),
}

#: Builder methods that only rearrange.
_VIEWS = [
    "reshape",
    "trans",
    "expand_dims",
    "broadcast",
    "splat",
    "unsplat",
    "cat",
    "join",
    "split",
    "bitcast",
    "int_to_ptr",
    "ptr_to_int",
    "addptr",
]

#: Operators of integer scalars.
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "sdiv": "c_div",
    "udiv": "c_div",
    "srem": "c_rem",
    "urem": "c_rem",
    "minsi": "min",
    "minui": "min",
    "maxsi": "max",
    "maxui": "max",
    "shl": "<<",
    "ashr": ">>",
    "lshr": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
    "icmpSLT": "<",
    "icmpULT": "<",
    "icmpSLE": "<=",
    "icmpULE": "<=",
    "icmpSGT": ">",
    "icmpUGT": ">",
    "icmpSGE": ">=",
    "icmpUGE": ">=",
    "icmpEQ": "==",
    "icmpNE": "!=",
}


class _Rewriter(ast.NodeTransformer):
    """Makes a kernel announce its conditions and endless loops, and its assignments as Triton does."""

    def __init__(self, assign: Any) -> None:
        self.assign = assign
        self.names = 0

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return self.assign.visit_Assign(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.body = self.block(node.body)
        node.decorator_list = []
        return node

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        node.body = self.block(node.body)
        return node

    def visit_While(self, node: ast.While) -> Any:
        test = self.condition(self.visit(node.test))
        loop = ast.For(
            target=ast.Name(id=self.fresh(), ctx=ast.Store()),
            iter=_call("repeat", _lambda(test)),
            body=self.block(node.body),
            orelse=[],
        )
        return ast.copy_location(loop, node)

    def fresh(self) -> str:
        self.names += 1
        return f"_tilesim_{self.names}"

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for index, statement in enumerate(body):
            if isinstance(statement, ast.If):
                rest = body[index + 1 :]
                # What follows an early return is its other branch.
                if rest and not statement.orelse and isinstance(statement.body[-1], ast.Return):
                    statement.orelse, rest = rest, []
                    body = body[: index + 1]
                out += self.branch(statement)
                if not rest:
                    break
            else:
                visited = self.visit(statement)
                out += visited if isinstance(visited, list) else [visited]
        return out

    def branch(self, node: ast.If) -> list[ast.stmt]:
        name = self.fresh()
        test = _call("branch", self.condition(self.visit(node.test)), ast.Constant(node.lineno))
        begin = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=test)
        choose = ast.If(
            test=ast.Name(id=name, ctx=ast.Load()),
            body=self.block(node.body),
            orelse=self.block(node.orelse),
        )
        return [ast.copy_location(n, node) for n in (begin, choose, ast.Expr(_call("join")))]

    def condition(self, test: ast.expr) -> ast.expr:
        match test:
            case ast.BoolOp(op, [first, *rest]):
                out = self.condition(first)
                name = "both" if isinstance(op, ast.And) else "either"
                for other in rest:
                    out = _call(name, out, _lambda(self.condition(other)))
                return out
            case ast.UnaryOp(ast.Not(), operand):
                return _call("negate", self.condition(operand))
        return test


def _call(name: str, *args: ast.expr) -> ast.Call:
    recorder = ast.Name(id="_tilesim_recorder", ctx=ast.Load())
    return ast.Call(ast.Attribute(recorder, name, ast.Load()), list(args), [])


def _lambda(body: ast.expr) -> ast.Lambda:
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(empty, body)


@dataclass
class _Modules:
    """Triton's modules, imported when first needed."""

    interpreter: Any
    tl: Any
    core: Any
    jit: Any
    semantic: Any


def _modules() -> _Modules:
    try:
        import triton.language as tl
        from triton.language import core, semantic
        from triton.runtime import interpreter, jit
    except ImportError as e:
        raise RecordError("recording needs Triton: pip install 'tilesim[test-triton]'") from e
    return _Modules(interpreter, tl, core, jit, semantic)


class _Recorder:
    """The state of one run. The rewritten kernel calls its methods."""

    def __init__(
        self,
        modules: _Modules,
        sources: list[Source],
        grid: tuple[int, int, int],
        program: tuple[int, int, int],
    ) -> None:
        self.m = modules
        self.sources = sources
        self.grid = grid
        self.program = program
        self.root = self.block = Block(())
        self.open: list[Block | None] = []
        self.vector: Vector | None = None
        self.ops: list[Access | Work | Vector] = []
        self.scalars: dict[Expr, bool] = {}
        self.notes: dict[str, None] = {}
        self.quiet = 0
        self.code: set[Any] = set()
        self.rewritten: dict[Any, Any] = {}
        self.stored: dict[int, Any] = {}
        self.builder = self._make_builder()
        self.semantic = modules.semantic.TritonSemantic(self.builder)

    # Where the kernel is.

    def line(self) -> int:
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code in self.code:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def fail(self, message: str) -> RecordError:
        return RecordError(f"line {self.line()}: {message}")

    # The tree.

    def flush(self) -> None:
        vector, self.vector = self.vector, None
        if vector is not None:
            self.ops.append(vector)
            if any(op.data for op in vector.ops):
                self.block.nodes.append(vector)

    def add(self, node: Access | Work | Loop | Branch) -> None:
        self.flush()
        if isinstance(node, Access | Work):
            self.ops.append(node)
            if isinstance(node, Work) and not node.data:
                return
        self.block.nodes.append(node)

    def next_path(self) -> Path:
        self.flush()
        return (*self.block.path, len(self.block.nodes))

    def range(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Triton's and Python's `range`."""
        return self._range(args, options, static=False)

    def static_range(self, *args: Any, **options: Any) -> Iterator[Any]:
        """A loop that the compiler unrolls: its variable is a number."""
        return self._range(args, options, static=True)

    def _range(self, args: tuple[Any, ...], options: dict[str, Any], static: bool) -> Iterator[Any]:
        named = [options.get(k) for k in ("arg1", "arg2", "step")]
        given = [*args, *named[len(args) :]]
        first, second, third = given
        lo, hi = (0, first) if second is None else (first, second)
        step = 1 if third is None else third
        stages = options.get("num_stages")
        bounds = tuple(self.integer(x) for x in (lo, hi, step))
        symbols = tuple(self.expr_of(x) for x in (lo, hi, step))
        low, _, by = symbols
        natural = low is not None and low.natural and by is not None and by.op == "const" and by.value > 0
        path = self.next_path()
        loop = Loop(path, bounds, symbols, self.line(), None if stages is None else self.integer(stages), static)  # type: ignore[arg-type]
        return self._iterate(loop, iter(builtins.range(*bounds)), natural, static)

    def repeat(self, test: Callable[[], Any]) -> Iterator[Any]:
        """`while`: a loop whose number of iterations is known afterwards."""

        def counts() -> Iterator[int]:
            count = 0
            while self.truth(test()):
                yield count
                count += 1

        loop = Loop(self.next_path(), (0, 0, 1), (const(0), None, const(1)), self.line())
        yield from self._iterate(loop, counts(), True, True)
        loop.bounds = (0, len(loop.iterations), 1)

    def _iterate(self, loop: Loop, counts: Iterator[int], natural: bool, plain: bool) -> Iterator[Any]:
        self.add(loop)
        outer = self.block
        try:
            for i in counts:
                self.block = Block(loop.path)
                loop.iterations.append((i, self.block))
                var = Expr("var", (loop.path, natural))
                self.scalars.setdefault(var, False)
                yield i if plain else self.scalar(i, var)
                self.flush()
                self.block = outer
        finally:
            self.flush()
            self.block = outer

    def branch(self, test: Any, line: int) -> bool:
        """An `if` begins; says which way it goes."""
        holds, expr = self.condition(test)
        self.flush()
        if expr is None or not expr.varies:
            self.open.append(None)
            return holds
        path = self.next_path()
        block = Block((*path, int(holds)))
        self.add(Branch(expr, holds, block, line))
        self.open.append(self.block)
        self.block = block
        return holds

    def join(self) -> None:
        """An `if` ends."""
        self.flush()
        block = self.open.pop()
        if block is not None:
            self.block = block

    def both(self, a: Any, b: Callable[[], Any]) -> _Condition:
        """`a and b` in a condition."""
        holds, expr = self.condition(a)
        if not holds and (expr is None or not expr.varies):
            return _Condition(False, expr)
        other, more = self.condition(b())
        return _Condition(holds and other, _join("&", expr, more))

    def either(self, a: Any, b: Callable[[], Any]) -> _Condition:
        """`a or b` in a condition."""
        holds, expr = self.condition(a)
        if holds and (expr is None or not expr.varies):
            return _Condition(True, expr)
        other, more = self.condition(b())
        return _Condition(holds or other, _join("|", expr, more))

    def negate(self, a: Any) -> _Condition:
        """`not a` in a condition."""
        holds, expr = self.condition(a)
        return _Condition(not holds, None if expr is None else binary("==", expr, const(0)))

    def condition(self, test: Any) -> tuple[bool, Expr | None]:
        if isinstance(test, _Condition):
            return test.holds, test.expr
        holds = self.truth(test)
        if isinstance(test, self.m.core.tensor):
            meta = self.meta(test.handle)
            if meta.expr is not None:
                # Anything but 0 holds; conditions are put together bit by bit, from 0 and 1.
                compares = meta.expr.op in ("<", "<=", ">", ">=", "==", "!=")
                return holds, meta.expr if compares else binary("!=", meta.expr, const(0))
            if meta.data:
                self.notes.setdefault(f"line {self.line()}: a condition on data went one way")
            return holds, None
        return holds, const(int(holds))

    def truth(self, test: Any) -> bool:
        if isinstance(test, _Condition):
            return test.holds
        if isinstance(test, self.m.core.tensor):
            self.not_blind(test.handle, "a condition")
        return bool(test)

    # Values.

    def meta(self, handle: Any) -> _Meta:
        return getattr(handle, "_tilesim", _NONE)

    def mark(self, handle: Any, meta: _Meta) -> Any:
        handle._tilesim = meta
        if meta.expr is not None and meta.expr.varies:
            self.scalars.setdefault(meta.expr, False)
        return handle

    def scalar(self, value: int, expr: Expr | None = None) -> Any:
        """An integer as the kernel sees it."""
        core = self.m.core
        for dtype, kind in ((core.int32, np.int32), (core.int64, np.int64), (core.uint64, np.uint64)):
            if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
                handle = self.m.interpreter.TensorHandle(np.array([value], dtype=kind), dtype)
                return core.tensor(self.mark(handle, _Meta(const(value) if expr is None else expr)), dtype)
        raise RecordError(f"an argument of {value} does not fit 64 bits")

    def integer(self, value: Any) -> int:
        value = getattr(value, "value", value)
        if isinstance(value, self.m.core.tensor):
            self.not_blind(value.handle, "a loop's bound")
            return int(value.handle.data.item())
        return int(value)

    def expr_of(self, value: Any) -> Expr | None:
        value = getattr(value, "value", value)
        if isinstance(value, self.m.core.tensor):
            meta = self.meta(value.handle)
            if meta.data:
                self.notes.setdefault(f"line {self.line()}: a loop's bound comes from data")
            return meta.expr
        return const(int(value))

    def not_blind(self, handle: Any, what: str) -> None:
        if self.meta(handle).data == 2:
            raise self.fail(
                f"{what} depends on data that the recording does not have (a tensor given by shape "
                "only, or a result the kernel computed); pass the tensor itself"
            )

    def of(self, args: tuple[Any, ...]) -> tuple[int, list[Value]]:
        """Whether data, and from which values, the handles among `args` are."""
        flat = [a for arg in args for a in (arg if isinstance(arg, list | tuple) else [arg])]
        metas = [self.meta(a) for a in flat]
        return max((m.data for m in metas), default=0), _merge(*(m.values for m in metas))

    def elementwise(self, function: str, out: Any, args: tuple[Any, ...]) -> Any:
        """Notes an operation on every element of `out`."""
        data, values = self.of(args)
        if out.data.size == 1 and out.data.ndim == 1 and not data:
            return self.mark(out, _Meta())
        if self.quiet:
            return self.mark(out, _Meta(None, data, tuple(values)))
        if self.vector is None:
            self.vector = Vector(line=self.line())
        vector = self.vector
        bits = max(8, int(out.get_element_ty().primitive_bitwidth))
        vector.ops.append(Op(function, tuple(out.data.shape), bits, bool(data)))
        vector.reads = _merge(vector.reads, [v for v in values if v.producer is not vector])
        if not data:
            return self.mark(out, _Meta())
        value = Value(vector, len(vector.ops) - 1, out.data.size * bits // 8)
        # Results that come from an earlier op of the same row need no name of their own.
        return self.mark(out, _Meta(None, data, (value,)))

    # Memory.

    def access(self, kind: str, ptrs: Any, mask: Any, reads: list[Value]) -> tuple[int, Any, Any, int]:
        """Notes an access; gives the tensor, element numbers, mask and element bytes."""
        lanes = ptrs.data.astype(np.int64)
        active = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), lanes.shape)
        for handle in (ptrs, mask):
            self.not_blind(handle, "what is touched")
        data, sources = self.of((ptrs, mask))
        bits = max(8, int(ptrs.get_element_ty().primitive_bitwidth))
        chosen = lanes[active] if active.any() else lanes.reshape(-1)[:1]
        index = int(chosen[0] // RANGE) - 1
        if not 0 <= index < len(self.sources) or bool((chosen // RANGE != index + 1).any()):
            raise self.fail(f"a {kind} through a pointer that belongs to no single tensor argument")
        source = self.sources[index]
        bytes_from = lanes - ((index + 1) * RANGE + RANGE // 2)
        offsets, rest = np.divmod(bytes_from, bits // 8)
        if bool(rest[active].any()):
            raise self.fail(f"a {kind} of {source.name!r} that is not aligned to its {bits} bits")
        if active.any():
            length = source.length * _bits(source.dtype) // bits
            low, high = int(offsets[active].min()), int(offsets[active].max())
            if low < 0 or high >= length:
                raise self.fail(
                    f"a {kind} of elements {low} to {high} of {source.name!r}, which has {length}; "
                    "mask it, or pass the whole tensor"
                )
        if lanes.size == 1 and lanes.ndim == 1:
            offsets, active = offsets.reshape(()), active.reshape(())
        reads = _merge(reads, sources)
        self.add(Access(kind, index, bits, region(offsets, active, bits), self.line(), reads, data > 0))
        return index, offsets.reshape(lanes.shape), active.reshape(lanes.shape), bits

    def load(self, ptrs: Any, mask: Any, other: Any) -> Any:
        index, offsets, active, bits = self.access("load", ptrs, mask, [])
        node = self.block.nodes[-1]
        assert isinstance(node, Access)
        dtype = ptrs.get_element_ty()
        kind = self.m.interpreter._get_np_dtype(dtype)
        out = np.zeros(ptrs.data.shape, dtype=kind)
        if other is not None:
            out[...] = np.broadcast_to(other.data, out.shape)
        data = self.sources[index].data
        seen = 2
        if data is not None and data.dtype.itemsize * 8 == bits and index not in self.stored:
            out[active] = data[offsets[active]].view(kind)
            seen = 1
        value = Value(node, 0, offsets.size * bits // 8)
        handle = self.m.interpreter.TensorHandle(out, dtype)
        return self.mark(handle, _Meta(None, seen, (value,)))

    def store(self, ptrs: Any, value: Any, mask: Any) -> None:
        index, *_ = self.access("store", ptrs, mask, list(self.meta(value).values))
        self.stored[index] = True

    def atomic(self, ptrs: Any, values: tuple[Any, ...], mask: Any) -> Any:
        """A read and a write of the same elements."""
        out = self.load(ptrs, mask, None)
        _, reads = self.of(values)
        index, *_ = self.access("store", ptrs, mask, _merge(reads, self.meta(out).values))
        self.stored[index] = True
        meta = self.meta(out)
        return self.mark(out, _Meta(None, 2, meta.values))

    # Products and reductions.

    def dot(self, a: Any, b: Any, d: Any) -> Any:
        *batch, m, k = a.data.shape
        n = b.data.shape[-1]
        bits = int(a.get_element_ty().primitive_bitwidth)
        reads = _merge(self.meta(a).values, self.meta(b).values)
        shape = (int(m), int(n), int(k), int(np.prod(batch, dtype=np.int64)))
        node = Work("dot", shape, str(a.get_element_ty()), bits, self.line(), reads)
        node.adds_to = list(self.meta(d).values)
        self.add(node)
        out = self.m.interpreter.TensorHandle(np.zeros_like(d.data), d.dtype.scalar)
        size = out.data.size * int(d.get_element_ty().primitive_bitwidth) // 8
        return self.mark(out, _Meta(None, 2, (Value(node, 0, size),)))

    def reduce(self, input: Any, function: str, run: Callable[[], Any]) -> Any:
        tensors = input if isinstance(input, tuple) else (input,)
        data, values = self.of(tuple(t.handle for t in tensors))
        self.quiet += 1
        try:
            out = run()
        finally:
            self.quiet -= 1
        if self.quiet:
            return out
        first = tensors[0].handle
        bits = sum(max(8, int(t.handle.get_element_ty().primitive_bitwidth)) for t in tensors)
        node = Work("reduce", tuple(first.data.shape), function, bits, self.line(), values, data=bool(data))
        self.add(node)
        for i, result in enumerate(out if isinstance(out, tuple) else (out,)):
            handle = result.handle
            size = handle.data.size * max(8, int(handle.get_element_ty().primitive_bitwidth)) // 8
            kept = (Value(node, i, size),) if data else ()
            self.mark(handle, _Meta(None, data, kept))
        return out

    # The builder, and what else replaces Triton's own while a kernel runs.

    def _make_builder(self) -> Any:
        interpreter, recorder = self.m.interpreter, self
        builder = interpreter.InterpreterBuilder()
        # Overflow checks would add operations that no compiled kernel has.
        builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
        builder.set_grid_dim(*self.grid)
        builder.set_grid_idx(*self.program)

        def elementwise(name: str, function: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                out = method(*args)
                expr = recorder.scalar_expr(name, out, args)
                out = recorder.elementwise(function, out, args)
                if expr is not None:
                    recorder.mark(out, _Meta(expr))
                return out

            return run

        def view(method: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                out = method(*args)
                data, values = recorder.of(args)
                for arg in args:
                    expr = recorder.meta(arg).expr
                    if expr is not None and expr.varies:
                        recorder.scalars[expr] = True
                for handle in out if isinstance(out, tuple) else (out,):
                    recorder.mark(handle, _Meta(None, data, tuple(values)))
                return out

            return run

        for name, function in _ELEMENTWISE.items():
            setattr(builder, f"create_{name}", elementwise(name, function, getattr(builder, f"create_{name}")))
        for name in _VIEWS:
            setattr(builder, f"create_{name}", view(getattr(builder, f"create_{name}")))
        for bits in (8, 16, 32, 64):
            for sign in ("int", "uint"):
                make = getattr(builder, f"get_{sign}{bits}")
                setattr(builder, f"get_{sign}{bits}", _constant(recorder, make))
        builder.get_int1 = _constant(recorder, builder.get_int1)
        zero = builder.get_null_value
        builder.get_null_value = lambda dtype: recorder.mark(
            zero(dtype), _Meta(const(0) if dtype.scalar.is_int() else None)
        )
        program_id, programs = builder.create_get_program_id, builder.create_get_num_programs
        builder.create_get_program_id = lambda axis: recorder.mark(program_id(axis), _Meta(Expr("pid", (int(axis),))))
        builder.create_get_num_programs = lambda axis: recorder.mark(programs(axis), _Meta(Expr("grid", (int(axis),))))
        builder.create_masked_load = lambda ptrs, mask, other, *rest, **named: recorder.load(ptrs, mask, other)
        builder.create_masked_store = lambda ptrs, value, mask, *rest, **named: recorder.store(ptrs, value, mask)
        builder.create_dot = lambda a, b, d, *rest: recorder.dot(a, b, d)
        builder.create_atomic_cas = lambda ptr, cmp, val, *rest: recorder.atomic(
            ptr, (cmp, val), np.ones(ptr.data.shape, dtype=bool)
        )
        builder.create_atomic_rmw = lambda op, ptr, val, mask, *rest: recorder.atomic(ptr, (val,), mask)
        builder.create_print = lambda *args: None
        builder.create_assert = lambda *args: None
        return builder

    def scalar_expr(self, name: str, out: Any, args: tuple[Any, ...]) -> Expr | None:
        """The expression of an integer scalar, if those of its operands are known."""
        if out.data.shape != (1,) or out.data.dtype.kind not in "iub":
            return None
        exprs = [self.meta(a).expr for a in args if isinstance(a, self.m.interpreter.TensorHandle)]
        if not exprs or any(e is None for e in exprs):
            return None
        known = [e for e in exprs if e is not None]
        if name == "int_cast" and args[0].data.dtype.kind in "iub":
            return known[0]
        if name == "select":
            return select(*known)
        operator = _OPERATORS.get(name)
        return None if operator is None or len(known) != 2 else binary(operator, *known)

    def convert(self, value: Any) -> Any:
        """An argument as the kernel sees it; tensors are `TensorArgument`s."""
        core = self.m.core
        if isinstance(value, bool):
            handle = self.m.interpreter.TensorHandle(np.array([value], dtype=np.bool_), core.int1)
            return core.tensor(self.mark(handle, _Meta(const(int(value)))), core.int1)
        if isinstance(value, int | np.integer):
            return self.scalar(int(value))
        if isinstance(value, TensorArgument):
            dtype = core.pointer_type(self.sources[value.index].dtype)
            address = (value.index + 1) * RANGE + RANGE // 2 + value.offset_bytes
            handle = self.m.interpreter.TensorHandle(np.array([address], dtype=np.uint64), dtype)
            return core.tensor(self.mark(handle, _Meta()), dtype)
        if isinstance(value, DescriptorArgument):
            return self.semantic.make_tensor_descriptor(
                base=self.convert(value.base),
                shape=[self.convert(s) for s in value.shape],
                strides=[*(self.convert(s) for s in value.strides[:-1]), core.constexpr(1)],
                block_shape=[core.constexpr(b) for b in value.block_shape],
                padding_option=value.padding,
            )
        if isinstance(value, tuple):
            items = [self.convert(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def rewrite(self, fn: Any) -> Any:
        """The kernel function `fn`, made to announce itself."""
        done = self.rewritten.get(fn)
        if done is not None:
            return done
        interpreter = self.m.interpreter
        scope = {k: v for k, v in vars(interpreter).items() if not k.startswith("__")}
        scope.update(fn.__globals__)
        closure = fn.__closure__ or ()
        for name, cell in zip(fn.__code__.co_freevars, closure, strict=True):
            scope[name] = cell.cell_contents
        scope.update(
            range=self.range,
            min=self.least,
            max=self.most,
            interpreter_semantic=self.semantic,
            _tilesim_recorder=self,
        )
        rewriter = interpreter.FunctionRewriter(fn)
        try:
            lines, _ = inspect.getsourcelines(fn)
            rewriter.filename, rewriter.def_file_lineno = rewriter._get_jit_fn_file_line()
        except (OSError, TypeError) as e:
            raise RecordError(f"the source of {fn.__name__} cannot be read ({e}); define it in a file") from e
        rewriter.def_lineno = rewriter._find_def(lines)
        tree = ast.parse(rewriter._prepare_source(lines))
        tree = _Rewriter(interpreter.ASTTransformer()).visit(tree)
        ast.fix_missing_locations(tree)
        ast.increment_lineno(tree, rewriter.def_file_lineno - 1)
        made: dict[str, Any] = {}
        exec(compile(tree, rewriter.filename, "exec"), scope, made)
        done = made[fn.__name__]
        done.__defaults__, done.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
        self.rewritten[fn] = done
        self.code.add(done.__code__)
        return done

    def call(self, fn: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A kernel calls another."""
        block, depth = self.block, len(self.open)
        out = self.rewrite(fn)(*args, **named)
        # A return from within a condition leaves it open.
        self.flush()
        self.block = block
        del self.open[depth:]
        return out

    def least(self, *args: Any, **named: Any) -> Any:
        """Python's `min`, which a compiled kernel takes for `tl.minimum`."""
        return self._extreme("minimum", builtins.min, args, named)

    def most(self, *args: Any, **named: Any) -> Any:
        """Python's `max`, which a compiled kernel takes for `tl.maximum`."""
        return self._extreme("maximum", builtins.max, args, named)

    def _extreme(self, name: str, plain: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if any(isinstance(a, self.m.core.tensor) for a in args) and len(args) == 2:
            return getattr(self.m.tl, name)(*args)
        return plain(*args, **named)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Triton's language runs on our builder; restored at the end."""
        interpreter, tl, core = self.m.interpreter, self.m.tl, self.m.core
        scope = interpreter._LangPatchScope()
        thread = threading.get_ident()
        try:
            for lang in (tl, core):
                interpreter._patch_builtin(lang, self.builder, scope)
                interpreter._patch_builtin(lang.tensor, self.builder, scope)
                if lang is tl:
                    interpreter._patch_builtin(lang.math, self.builder, scope)
                interpreter._patch_lang_tensor(lang.tensor, scope)
                interpreter._patch_lang_core(lang, scope)
            interpreter._patch_builtin(core.tensor_descriptor_base, self.builder, scope)
            for lang in (tl, core):
                scope.set_attr(lang, "range", self.range)
                scope.set_attr(lang, "static_range", self.static_range)
                scope.set_attr(lang, "static_print", lambda *a, **k: None)
                for name in ("reduce", "associative_scan"):
                    scope.set_attr(lang, name, self._reduction(name, getattr(lang, name)))
            for cls in (interpreter.InterpretedFunction, self.m.jit.JITFunction):
                scope.set_attr(cls, "__call__", self._caller(cls.__call__, thread))
            yield
        finally:
            scope.restore()

    def _caller(self, own: Callable[..., Any], thread: int) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **named: Any) -> Any:
            if threading.get_ident() != thread:
                return own(function, *args, **named)
            return self.call(function.fn, args, named)

        return call

    def _reduction(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        standard = self.m.tl.standard
        known = {"_elementwise_max": "max", "_elementwise_min": "min", "_sum_combine": "sum"}
        names = {id(getattr(standard, k, None)): v for k, v in known.items()}

        def reduce(input: Any, axis: Any, combine_fn: Any, *args: Any, **named: Any) -> Any:
            kind = "reduce" if name == "reduce" else "scan"
            short = names.get(id(combine_fn)) or getattr(combine_fn, "__name__", "other").strip("_")
            run = lambda: method(input, axis, combine_fn, *args, **named)  # noqa: E731
            return self.reduce(input, f"{kind}_{short}", run)

        return reduce


@dataclass(frozen=True)
class TensorArgument:
    """A tensor among the arguments, by number."""

    index: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class DescriptorArgument:
    """A tensor descriptor among the arguments."""

    base: TensorArgument
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str


def _constant(recorder: _Recorder, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: recorder.mark(make(value), _Meta(const(int(value))))


def _join(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return None
    for one, other in ((a, b), (b, a)):
        if one.op == "const":
            return one if bool(one.value) == (op == "|") else other
    return binary(op, a, b)


def _bits(dtype: Any) -> int:
    return max(8, int(dtype.primitive_bitwidth))


def interpret(
    function: Any,
    args: Mapping[str, Any],
    constants: frozenset[str],
    sources: list[Source],
    grid: tuple[int, int, int],
    program: tuple[int, int, int],
) -> Item:
    """Runs program instance `program` of the kernel function and says what it did."""
    with _lock:
        recorder = _Recorder(_modules(), sources, grid, program)
        with recorder.installed(), np.errstate(all="ignore"):
            kernel = recorder.rewrite(function)
            given = {n: v if n in constants else recorder.convert(v) for n, v in args.items()}
            try:
                kernel(**given)
            except RecordError:
                raise
            except Exception as e:
                line = _line_of(e, recorder.code)
                raise RecordError(
                    f"{function.__name__}, line {line}, program {program}: {type(e).__name__}: {e}"
                ) from e
            recorder.flush()
    return Item(program, recorder.root, recorder.ops, recorder.scalars, list(recorder.notes))


def _line_of(error: BaseException, code: set[Any]) -> int:
    line, at = 0, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in code:
            line = at.tb_lineno
        at = at.tb_next
    return line

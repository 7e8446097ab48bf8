"""Building a trace in Python. The server's own parser judges it: what is wrong is told with its place and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .errors import InvalidInput
from .expr import Expr, IntLike, Variable, expr, variables
from .launches import Trace

Unit: TypeAlias = Literal["vector", "matmul", "preload", "cross_lane"]
Role: TypeAlias = Literal["in", "out", "inout"]
Dim: TypeAlias = "tuple[IntLike, IntLike] | tuple[IntLike, IntLike, IntLike]"
"""Extent and stride in elements, and how many of the extent are moved (default: all)."""

_IDENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AXIS_WORDS = frozenset(["p0", "p1", "p2", "g0", "g1", "g2"])
_INDENT = "  "


@dataclass(frozen=True)
class Tensor:
    """A tensor of a trace."""

    name: str


@dataclass(frozen=True)
class Buffer:
    """A scratchpad buffer of a trace."""

    name: str


@dataclass(frozen=True)
class Tile:
    """A compute tile of a trace."""

    name: str
    unit: Unit


class TraceBuilder:
    """Builds a trace: declarations, then the statements of one work-item in the order they run.

    Blocks are `with` statements. What is computed with Python's own operators from program ids, parameters and loop
    variables becomes an expression of the trace::

        b = TraceBuilder("copy", axes=1)
        n = b.param("N")
        x = b.tensor("x", 32, "in", [n])
        y = b.tensor("y", 32, "out", [n])
        row = b.buffer("row", 4096)
        (p,) = b.pids
        valid = minimum(1024, n - p * 1024)
        b.load(x, p * 1024, [(1024, 1, valid)], semaphore=0, writes=[row])
        b.wait(0, 1024)
        b.store(y, p * 1024, [(1024, 1, valid)], reads=[row])
        trace = b.build()
    """

    def __init__(self, kernel: str = "", *, axes: int, producer: str = "tilesim-python", version: str = "") -> None:
        if axes not in (1, 2, 3):
            raise InvalidInput(f"{axes} axes", code="trace.bad_axes", path="axes", hint="a trace has 1, 2 or 3")
        self.kernel = kernel
        self.pids = tuple(Expr(f"p{i}") for i in range(axes))
        """The program ids: where in the grid a work-item lies."""
        self.grid = tuple(Expr(f"g{i}") for i in range(axes))
        """The extents of the grid."""
        self._head = ["tilesim trace 1", ""]
        if kernel:
            self._head.append(f"kernel {_quote(kernel)}")
        self._head.append(f"producer {_quote(producer)}" + (f" version {_quote(version)}" if version else ""))
        self._declared = [f"axes {axes}"]
        self._names: dict[str, set[str]] = {kind: set() for kind in ("parameter", "tensor", "buffer", "tile")}
        self._dispatch = ""
        self._body: list[str] = []
        self._scopes: list[list[Variable]] = [[]]
        self._else_at = -1

    def origin(self, key: str, value: str) -> None:
        """Notes where the trace comes from. It changes no result."""
        self._head.append(f"origin {_quote(key)} {_quote(value)}")

    def measured(
        self,
        *,
        lanes: int | None = None,
        vector_bits: int | None = None,
        array_rows: int | None = None,
        array_cols: int | None = None,
        element: str | None = None,
    ) -> None:
        """Says on what machine the cycles of tiles were measured. Call it once at most."""
        facts = {"lanes": lanes, "vector_bits": vector_bits, "array_rows": array_rows, "array_cols": array_cols}
        words = [f"{word} {value}" for word, value in facts.items() if value is not None]
        if element is not None:
            words.append(f"element {_name(element)}")
        self._head.append(" ".join(["measured", *words]))

    def param(self, name: str, default: int | None = None) -> Expr:
        """Declares an integer parameter; without a default each launch must give it."""
        self._declare("parameter", name)
        value = "" if default is None else f" = {expr(default)}"
        self._declared.append(f"param {_name(name)}{value}")
        return Expr(_name(name))

    def tensor(
        self, name: str, bits: int, role: Role, extents: Sequence[IntLike], *, tiled: Sequence[int] | None = None
    ) -> Tensor:
        """Declares a tensor: bits per element, and extents in elements, outermost first. `tiled` lays it out tile
        by tile."""
        self._declare("tensor", name)
        layout = f" tiled [{', '.join(map(str, tiled))}]" if tiled is not None else ""
        self._declared.append(f"tensor {_name(name)}: {bits} bit {role} [{self._list(extents)}]{layout}")
        return Tensor(name)

    def bounds_off(self) -> None:
        """Counts transfers outside their tensor instead of refusing them."""
        self._declared.append("bounds off")

    def buffer(self, name: str, size_bytes: int) -> Buffer:
        """Declares a scratchpad buffer; 0 bytes: a virtual one, for dependencies only."""
        self._declare("buffer", name)
        self._declared.append(f"buffer {_name(name)} {size_bytes}")
        return Buffer(name)

    def tile(
        self,
        name: str,
        unit: Unit,
        cycles: int | None,
        *,
        overlap: int = 0,
        source: Literal["declared", "measured"] = "declared",
        analytic: str | None = None,
        admit: Iterable[tuple[str, str, int, float]] = (),
    ) -> Tile:
        """Declares a compute tile and its cost in core cycles (None: unknown, no launch may run it).

        `overlap`: cycles by which a successor on the same unit may overlap it. `analytic`: the formula the cost comes
        from. `admit`: what it asks of named units, each as unit, what is counted, how much, capacity per cycle.
        """
        self._declare("tile", name)
        words = ["tile", _name(name), "unit", unit, "cycles", "unknown" if cycles is None else str(cycles)]
        if overlap:
            words += ["overlap", str(overlap)]
        words += ["source", source if analytic is None else f"analytic {_quote(analytic)}"]
        for on, work, amount, capacity in admit:
            words += ["admit", _name(on), _name(work), str(amount), "per", repr(capacity)]
        self._declared.append(" ".join(words))
        return Tile(name, unit)

    def resources(self, *, registers: int = 0, threads: int = 0) -> None:
        """Says what one work-item takes of a core: registers, of all its threads together, and threads. Call it once at
        most."""
        self._declared.append(f"resources registers {registers} threads {threads}")

    def dispatch(self, *, order: Sequence[int] = (), key: IntLike | None = None) -> None:
        """In which order work-items start: axes from the slowest to the fastest, or sorted by a key."""
        words = ["dispatch"]
        if order:
            words += ["order", *(f"p{axis}" for axis in order)]
        if key is not None:
            words += ["key", self._text(key)]
        self._dispatch = " ".join(words)

    @contextmanager
    def loop(
        self, start: IntLike, stop: IntLike | None = None, step: IntLike = 1, *, name: str = "i"
    ) -> Iterator[Expr]:
        """A loop, as `range(start, stop, step)` counts; its variable is what `with` gives."""
        begin, end = (0, start) if stop is None else (start, stop)
        bounds = f"{self._text(begin)}..{self._text(end)}"
        stride = "" if isinstance(step, int) and step == 1 else f" step {self._text(step)}"
        variable = self._variable(name)
        with self._block(f"for {variable} in {bounds}{stride}", [variable]):
            yield variable

    def let(self, name: str, value: IntLike) -> Expr:
        """A name for a value, from here to the end of the enclosing block. It costs nothing to run."""
        text = self._text(value)
        variable = self._variable(name)
        self._line(f"let {variable} = {text}")
        self._scopes[-1].append(variable)
        return variable

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[None]:
        """Statements that run if the condition is not 0."""
        with self._block(f"if {self._text(condition)}", []):
            yield
        self._else_at = len(self._body)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Statements that run if the condition of the `when` right before is 0."""
        if self._else_at != len(self._body):
            raise InvalidInput(
                "`otherwise` does not follow a `when`", code="client.bad_block", hint="put it right after the block"
            )
        self._body.pop()
        with self._block("} else", []):
            yield

    def load(
        self,
        tensor: Tensor,
        offset: IntLike,
        dims: Sequence[Dim] = (),
        *,
        semaphore: int | None = None,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
        indices: Sequence[IntLike] | None = None,
        lines: tuple[IntLike, int] | None = None,
        bits: int | None = None,
    ) -> None:
        """Moves elements from a tensor: one, or `dims` of them, outermost first, from `offset` on, in elements.

        With a semaphore it runs beside what follows, until a `wait`. `indices` moves the dims once at each offset plus
        index. `lines` says only how many memory lines of how many bytes are touched. `bits`: per element as moved.
        """
        self._transfer("load", tensor, offset, dims, semaphore, reads, writes, indices, lines, bits)

    def store(
        self,
        tensor: Tensor,
        offset: IntLike,
        dims: Sequence[Dim] = (),
        *,
        semaphore: int | None = None,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
        indices: Sequence[IntLike] | None = None,
        lines: tuple[IntLike, int] | None = None,
        bits: int | None = None,
    ) -> None:
        """Moves elements to a tensor; see `load`."""
        self._transfer("store", tensor, offset, dims, semaphore, reads, writes, indices, lines, bits)

    def compute(
        self,
        tile: Tile,
        *,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        """Runs a compute tile."""
        self._line(f"compute {_name(tile.name)} {tile.unit}{_buffers('reads', reads)}{_buffers('writes', writes)}")

    def wait(self, semaphore: int, elements: IntLike) -> None:
        """Waits until every load issued on the semaphore since the last wait has arrived: so many elements."""
        self._line(f"wait {semaphore} for {self._text(elements)}")

    def build(self) -> Trace:
        """The trace, in the text form."""
        if len(self._scopes) != 1:
            raise InvalidInput(
                "a block is still open", code="client.bad_block", hint="build the trace outside of all `with` blocks"
            )
        return Trace.text(str(self), f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.kernel) or 'trace'}.tile")

    def __str__(self) -> str:
        declared = self._declared + ([self._dispatch] if self._dispatch else [])
        return "\n".join([*self._head, *declared, "", "body {", *self._body, "}", ""])

    def _declare(self, kind: str, name: str) -> None:
        if name in self._names[kind]:
            raise InvalidInput(
                f"{kind} `{name}` is declared twice", code="trace.bad_name", hint="give each its own name"
            )
        self._names[kind].add(name)

    def _variable(self, name: str) -> Variable:
        """A variable whose name nothing around it has, so that nothing is hidden."""
        taken = {str(v) for scope in self._scopes for v in scope} | {_name(n) for n in self._names["parameter"]}
        unique, n = name, 1
        while _name(unique) in taken:
            n += 1
            unique = f"{name}_{n}"
        return Variable(_name(unique))

    def _text(self, value: IntLike) -> str:
        """The text of an expression all of whose variables are in scope."""
        value = expr(value)
        hidden = variables(value) - {v for scope in self._scopes for v in scope}
        if hidden:
            names = ", ".join(sorted(f"`{v}`" for v in hidden))
            raise InvalidInput(
                f"`{value}` uses {names} outside of its block",
                code="client.out_of_scope",
                hint="compute with a loop's variable inside the loop",
            )
        return str(value)

    def _list(self, values: Iterable[IntLike]) -> str:
        return ", ".join(self._text(v) for v in values)

    def _line(self, text: str) -> None:
        self._body.append(_INDENT * len(self._scopes) + text)

    @contextmanager
    def _block(self, head: str, scope: list[Variable]) -> Iterator[None]:
        self._line(f"{head} {{")
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()
            self._line("}")

    def _transfer(
        self,
        verb: str,
        tensor: Tensor,
        offset: IntLike,
        dims: Sequence[Dim],
        semaphore: int | None,
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
        indices: Sequence[IntLike] | None,
        lines: tuple[IntLike, int] | None,
        bits: int | None,
    ) -> None:
        words = [verb, f"{_name(tensor.name)}[{self._text(offset)}]"]
        if dims:
            words.append(f"dims [{', '.join(map(self._dim, dims))}]")
        if indices is not None:
            words.append(f"indices [{self._list(indices)}]")
        if lines is not None:
            words.append(f"lines {self._text(lines[0])} of {lines[1]} bytes")
        if bits is not None:
            words.append(f"bits {bits}")
        if semaphore is not None:
            words.append(f"async {semaphore}")
        self._line(" ".join(words) + _buffers("reads", reads) + _buffers("writes", writes))

    def _dim(self, dim: Dim) -> str:
        extent, stride, *valid = (self._text(d) for d in dim)
        return f"{extent}: {stride}" + "".join(f" valid {v}" for v in valid)


def _buffers(word: str, buffers: Sequence[Buffer]) -> str:
    return f" {word} [{', '.join(_name(b.name) for b in buffers)}]" if buffers else ""


def _name(name: str) -> str:
    """A name as it stands in the text."""
    return name if _IDENT.fullmatch(name) and name not in _AXIS_WORDS else _quote(name)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in escaped) + '"'

"""Integer expressions over program ids, grid extents and loop variables, as traces have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..expr import FUNCTIONS, IntLike, call, infix

__all__ = ["Env", "Expr", "affine", "binary", "clamp", "const", "select"]

#: A loop: where it stands in the kernel's tree of blocks.
Path = tuple[int, ...]


@dataclass(frozen=True)
class Env:
    """What an expression is evaluated with."""

    program: tuple[int, int, int]
    grid: tuple[int, int, int]
    loops: Mapping[Path, int]


@dataclass(frozen=True)
class Expr:
    """An expression: `const` (args: value), `pid` and `grid` (args: axis), `var` (args: path and
    whether it is known to be at least 0), `select`, or an operator of `OPERATORS`."""

    op: str
    args: tuple[object, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args))

    @cached_property
    def children(self) -> tuple[Expr, ...]:
        return tuple(a for a in self.args if isinstance(a, Expr))

    @cached_property
    def size(self) -> int:
        """Nodes."""
        return 1 + sum(c.size for c in self.children)

    @cached_property
    def paths(self) -> frozenset[Path]:
        """The loops whose variables occur."""
        if self.op == "var":
            path = self.args[0]
            assert isinstance(path, tuple)
            return frozenset((path,))
        return frozenset[Path]().union(*(c.paths for c in self.children))

    @cached_property
    def varies(self) -> bool:
        """Whether it can differ between work-items or iterations."""
        return self.op in ("pid", "var") or any(c.varies for c in self.children)

    @cached_property
    def natural(self) -> bool:
        """Whether it is known to be at least 0."""
        match self.op:
            case "const":
                return self.value >= 0
            case "pid" | "grid" | "<" | "<=" | ">" | ">=" | "==" | "!=":
                return True
            case "var":
                return bool(self.args[1])
            case "+" | "*" | "min" | "c_div":
                return all(c.natural for c in self.children)
            case "max":
                return any(c.natural for c in self.children)
            case "c_rem":
                return self.children[0].natural
            case "&":
                return any(c.natural for c in self.children)
            case "select":
                return all(c.natural for c in self.children[1:])
        return False

    @property
    def value(self) -> int:
        """The value of a constant."""
        (value,) = self.args
        assert isinstance(value, int)
        return value

    def eval(self, env: Env) -> int:
        """The value; `ZeroDivisionError` or `ValueError` (a shift count) where there is none."""
        match self.op:
            case "const":
                return self.value
            case "pid" | "grid":
                axis = self.args[0]
                assert isinstance(axis, int)
                return (env.program if self.op == "pid" else env.grid)[axis]
            case "var":
                path = self.args[0]
                assert isinstance(path, tuple)
                return env.loops[path]
            case "select":
                c, a, b = self.children
                return (a if c.eval(env) else b).eval(env)
        a, b = self.children
        return OPERATORS[self.op](a.eval(env), b.eval(env))

    def lower(self, leaf: Callable[[Expr], IntLike], known: Mapping[Expr, IntLike]) -> IntLike:
        """The same as an expression of a trace; `leaf` says what ids and variables are there, and `known` what has a
        name."""
        named = known.get(self)
        if named is not None:
            return named
        match self.op:
            case "const":
                return self.value
            case "pid" | "grid" | "var":
                return leaf(self)
        values = [c.lower(leaf, known) for c in self.children]
        op = self.op
        if op in ("c_div", "c_rem") and all(c.natural for c in self.children):
            op = {"c_div": "/", "c_rem": "%"}[op]
        return call(op, *values) if op in FUNCTIONS else infix(op, values[0], values[1])


def _c_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


#: Operators on two operands.
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "c_div": _c_div,
    "c_rem": lambda a, b: a - b * _c_div(a, b),
    "min": min,
    "max": max,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}


def const(value: int) -> Expr:
    """A constant."""
    return Expr("const", (int(value),))


def binary(op: str, a: Expr, b: Expr) -> Expr | None:
    """`a op b`, folded where it is constant; `None` where it has no value."""
    if a.op == b.op == "const":
        try:
            return const(OPERATORS[op](a.value, b.value))
        except (ZeroDivisionError, ValueError, OverflowError):
            return None
    if b.op == "const":
        if (op in ("+", "-", "<<", ">>") and b.value == 0) or (op in ("*", "c_div") and b.value == 1):
            return a
        if op == "+" and b.value < 0:
            return Expr("-", (a, const(-b.value)))
    if a.op == "const":
        if (op == "+" and a.value == 0) or (op == "*" and a.value == 1):
            return b
        if op in ("+", "*"):
            return binary(op, b, a)
    if op in ("+", "-") and a.op in ("+", "-") and b.op == "const" and a.children[1].op == "const":
        inner = a.children[1].value if a.op == "+" else -a.children[1].value
        outer = b.value if op == "+" else -b.value
        return binary("+", a.children[0], const(inner + outer))
    return Expr(op, (a, b))


def select(c: Expr, a: Expr, b: Expr) -> Expr:
    """`a` where `c` is not 0, else `b`."""
    if c.op == "const":
        return a if c.value else b
    return Expr("select", (c, a, b))


def _sum(a: Expr, b: Expr) -> Expr:
    out = binary("+", a, b)
    assert out is not None
    return out


def affine(constant: int, terms: list[tuple[int, Expr]]) -> Expr:
    """`constant + sum of coefficient * expression`, positive terms first."""
    total: Expr | None = None
    for coefficient, term in sorted((t for t in terms if t[0]), key=lambda t: t[0] < 0):
        size = binary("*", term, const(abs(coefficient)))
        assert size is not None
        if total is None and coefficient > 0:
            total = size
        else:
            base = const(constant) if total is None else total
            constant = 0 if total is None else constant
            total = _sum(base, size) if coefficient > 0 else Expr("-", (base, size))
    return const(constant) if total is None else _sum(total, const(constant))


def clamp(most: int, inner: Expr) -> Expr:
    """`inner`, at least 0 and at most `most`."""
    least = binary("min", const(most), inner)
    assert least is not None
    return least if least.natural else Expr("max", (const(0), least))

"""Integer expressions of traces.

Values are signed 64-bit integers. Python's operators mean what the trace language means by them: `//` and `%` round
toward minus infinity, `&`, `|` and `^` are bitwise, comparisons are 1 or 0 (`==` and `!=` as well, so that an
expression is no dictionary key to look up by value). An expression has no truth value: it is not known before a launch.
"""

from __future__ import annotations

import operator
from typing import NoReturn, SupportsIndex, TypeAlias

from .errors import InvalidInput

_BINARY = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
"""Infix operators; higher binds tighter."""
_PREFIX = 11
_ATOM = 12

_UNARY_FUNCTIONS = ("trunc_i8", "trunc_u8", "trunc_i16", "trunc_u16", "trunc_i32", "trunc_u32")
_BINARY_FUNCTIONS = (
    "min", "max", "ceil_div", "wrap_add", "wrap_sub", "wrap_mul", "wrap_shl",
    "c_div", "c_rem", "u_div", "u_rem", "u_shr", "u_lt", "u_le",
)  # fmt: skip
FUNCTIONS = {"select": 3} | dict.fromkeys(_UNARY_FUNCTIONS, 1) | dict.fromkeys(_BINARY_FUNCTIONS, 2)
"""Functions of the trace language and how many arguments they take."""


class Expr:
    """An expression: its text, how tightly that binds, and the loops it needs around it."""

    __slots__ = ("_binding", "_text", "_variables")

    def __init__(self, text: str, binding: int = _ATOM, variables: frozenset[Variable] = frozenset()) -> None:
        self._text = text
        self._binding = binding
        self._variables = variables

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Expr({self._text})"

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"`{self._text}` has no truth value before a launch: use select, logical_and and TraceBuilder.when"
        )

    def _within(self, binding: int) -> str:
        return self._text if self._binding >= binding else f"({self._text})"

    def __add__(self, other: IntLike) -> Expr:
        return infix("+", self, other)

    def __radd__(self, other: IntLike) -> Expr:
        return infix("+", other, self)

    def __sub__(self, other: IntLike) -> Expr:
        return infix("-", self, other)

    def __rsub__(self, other: IntLike) -> Expr:
        return infix("-", other, self)

    def __mul__(self, other: IntLike) -> Expr:
        return infix("*", self, other)

    def __rmul__(self, other: IntLike) -> Expr:
        return infix("*", other, self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return infix("/", self, other)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return infix("/", other, self)

    def __mod__(self, other: IntLike) -> Expr:
        return infix("%", self, other)

    def __rmod__(self, other: IntLike) -> Expr:
        return infix("%", other, self)

    def __lshift__(self, other: IntLike) -> Expr:
        return infix("<<", self, other)

    def __rlshift__(self, other: IntLike) -> Expr:
        return infix("<<", other, self)

    def __rshift__(self, other: IntLike) -> Expr:
        return infix(">>", self, other)

    def __rrshift__(self, other: IntLike) -> Expr:
        return infix(">>", other, self)

    def __and__(self, other: IntLike) -> Expr:
        return infix("&", self, other)

    def __rand__(self, other: IntLike) -> Expr:
        return infix("&", other, self)

    def __or__(self, other: IntLike) -> Expr:
        return infix("|", self, other)

    def __ror__(self, other: IntLike) -> Expr:
        return infix("|", other, self)

    def __xor__(self, other: IntLike) -> Expr:
        return infix("^", self, other)

    def __rxor__(self, other: IntLike) -> Expr:
        return infix("^", other, self)

    def __lt__(self, other: IntLike) -> Expr:
        return infix("<", self, other)

    def __le__(self, other: IntLike) -> Expr:
        return infix("<=", self, other)

    def __gt__(self, other: IntLike) -> Expr:
        return infix(">", self, other)

    def __ge__(self, other: IntLike) -> Expr:
        return infix(">=", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return infix("==", self, _operand(other))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return infix("!=", self, _operand(other))

    def __neg__(self) -> Expr:
        return _prefix("-", self)

    def __pos__(self) -> Expr:
        return self

    def __invert__(self) -> Expr:
        return _prefix("~", self)


class Variable(Expr):
    """A loop's variable; it means something only inside the loop."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._variables = frozenset([self])


IntLike: TypeAlias = int | Expr
"""An integer, known now or in a launch."""


def expr(value: IntLike) -> Expr:
    """The value as an expression."""
    if isinstance(value, Expr):
        return value
    value = _integer(value)
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidInput(f"{value} is no signed 64-bit integer", code="client.bad_value")
    # A minus before a literal is part of it, but binds like any other prefix.
    return Expr(str(value), _ATOM if value >= 0 else _PREFIX)


def variables(value: Expr) -> frozenset[Variable]:
    """The loop variables that an expression uses."""
    return value._variables


def _operand(value: object) -> IntLike:
    return value if isinstance(value, Expr) else _integer(value)


def _integer(value: object) -> int:
    # numpy's integers have an index as well; truth values and floats are mistakes.
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"expected an integer or an expression, not {value!r}")
    return operator.index(value)


def infix(sign: str, left: IntLike, right: IntLike) -> Expr:
    """Two operands with an infix operator of the trace language between them, for example `infix("&&", a, b)`."""
    a, b = expr(left), expr(right)
    binding = _BINARY[sign]
    # All operators group to the left.
    text = f"{a._within(binding)} {sign} {b._within(binding + 1)}"
    return Expr(text, binding, a._variables | b._variables)


def _prefix(sign: str, operand: IntLike) -> Expr:
    a = expr(operand)
    # A minus right before a literal would become part of it.
    text = f"({a._text})" if a._text.isdigit() else a._within(_PREFIX)
    return Expr(sign + text, _PREFIX, a._variables)


def call(function: str, *arguments: IntLike) -> Expr:
    """A function of the trace language, for example `call("u_rem", x, 8)`. See `FUNCTIONS`."""
    wanted = FUNCTIONS.get(function)
    if wanted is None:
        raise InvalidInput(
            f"no function `{function}`", code="client.bad_function", hint="one of " + ", ".join(sorted(FUNCTIONS))
        )
    if len(arguments) != wanted:
        raise InvalidInput(f"`{function}` takes {wanted} arguments, not {len(arguments)}", code="client.bad_function")
    values = [expr(a) for a in arguments]
    used = frozenset[Variable]().union(*(v._variables for v in values))
    return Expr(f"{function}({', '.join(map(str, values))})", _ATOM, used)


def minimum(a: IntLike, b: IntLike) -> Expr:
    """The smaller of the two."""
    return call("min", a, b)


def maximum(a: IntLike, b: IntLike) -> Expr:
    """The larger of the two."""
    return call("max", a, b)


def ceil_div(a: IntLike, b: IntLike) -> Expr:
    """`a / b` rounded up."""
    return call("ceil_div", a, b)


def select(condition: IntLike, then: IntLike, otherwise: IntLike) -> Expr:
    """One of the two; only the chosen one is evaluated."""
    return call("select", condition, then, otherwise)


def logical_and(a: IntLike, b: IntLike) -> Expr:
    """1 or 0; `b` is only evaluated when it matters."""
    return infix("&&", a, b)


def logical_or(a: IntLike, b: IntLike) -> Expr:
    """1 or 0; `b` is only evaluated when it matters."""
    return infix("||", a, b)


def logical_not(a: IntLike) -> Expr:
    """1 if `a` is 0, else 0."""
    return _prefix("!", a)

"""What a recorded compute tile costs: the kernel library's formulas, or cycles as given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ._interpret import Op, RecordError

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """The facts of a machine that costs follow from. Costs by formula are marked as analytic and tie the trace to such
    a machine; `cycles` given by tile name ("dot0", "vector1", "reduce0", in the order of the kernel) replace them and
    are marked as declared."""

    array_rows: int = 128
    """Rows of a systolic array."""
    array_cols: int = 128
    """Its columns."""
    lanes: int = 128
    """Vector lanes."""
    vector_bits: int = 256
    """Bits that one lane works on in a cycle."""
    matmul: Literal["scale_sim_ws", "peak"] = "scale_sim_ws"
    """The formula of products."""
    addressing: bool = False
    """Whether work on addresses and masks costs vector cycles as well."""
    cycles: Mapping[str, int] = field(default_factory=dict)
    """Core cycles by tile name."""

    def __post_init__(self) -> None:
        for name in ("array_rows", "array_cols", "lanes", "vector_bits"):
            if getattr(self, name) < 1:
                raise RecordError(f"{name} is {getattr(self, name)}", path=f"costs.{name}", hint="give at least 1")
        if self.matmul not in ("scale_sim_ws", "peak"):
            raise RecordError(f"no formula {self.matmul!r}", path="costs.matmul", hint="use scale_sim_ws or peak")

    def dot(self, m: int, n: int, k: int, batch: int) -> tuple[int, str]:
        """Cycles of a product, and the formula."""
        r, c = self.array_rows, self.array_cols
        if self.matmul == "peak":
            cycles, text = -(-m * n * k * batch // (r * c)), "peak: ceil(M * N * K / (R * C))"
        else:
            folds = -(-k // r) * -(-n // c) * batch
            cycles = folds * (2 * r + c + m - 2) - 1
            text = "SCALE-Sim 3 weight-stationary: folds * (2R + C + M - 2) - 1, folds = ceil(K/R) * ceil(N/C)"
        times = f" {batch} times" if batch > 1 else ""
        return cycles, f"{text}; {m} x {n} x {k}{times} on {r} x {c}"

    def vector(self, ops: tuple[Op, ...]) -> tuple[int, str]:
        """Cycles of elementwise work, and the formula."""
        counted = [op for op in ops if op.data or self.addressing]
        cycles = sum(self._vectors(_elements(op.shape), op.bits) for op in counted)
        text = (
            f"PyTorchSim vector on {self._where()}: sum over operations of ceil(elements / throughput), "
            f"{len(counted)} operations on {sum(_elements(op.shape) for op in counted)} elements in all"
        )
        return cycles, text

    def reduction(self, shape: tuple[int, ...], bits: int) -> tuple[int, str]:
        """Cycles of a reduction across lanes, and the formula."""
        elements = _elements(shape)
        text = (
            f"PyTorchSim reduction on {self._where()}: 7 * (1 + n), n = ceil(elements / throughput), "
            f"{elements} of {bits} bits"
        )
        return 7 * (1 + self._vectors(elements, bits)), text

    def _where(self) -> str:
        return f"{self.lanes} lanes of {self.vector_bits} bits"

    def _vectors(self, elements: int, bits: int) -> int:
        return -(-elements // max(1, self.lanes * self.vector_bits // max(1, bits)))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count

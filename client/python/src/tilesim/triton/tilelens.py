"""Launches saved by TileLens (`tilelens.save`), read without TileLens and without torch.

A saved file (format `tilelens_trace`, or `triton_viz_trace` of older versions; version 1) is a zip of `manifest.json`
and `tensors.npz`. Its tracer keeps per program which elements each load and store touched, products and sums; it keeps
no other elementwise work, no arguments but tensors, and no loops. So what is read has transfers in full, compute tiles
for products and sums only, and no name of the kernel.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..launches import Trace
from ._costs import Costs
from ._emit import Declared, emit
from ._expr import Expr, affine, binary, const
from ._fold import Mismatch, fold
from ._interpret import Access, Block, Item, Loop, RecordError, Value, Work
from ._regions import region
from .recording import Recording, TensorSpec

__all__ = ["SavedLaunch", "read_tilelens"]

Program = tuple[int, int, int]

#: Bytes of a manifest, and of the arrays beside it, that are read.
MAX_BYTES = 1 << 30

#: Steps of a repeated pattern that are looked for.
MAX_PERIOD = 64

#: Divisors of the program id that are tried.
MAX_DIVISORS = 24


@dataclass(frozen=True)
class SavedLaunch:
    """One launch of a saved file."""

    grid: Program
    tensors: tuple[TensorSpec, ...]
    """The tensors by address; a trace calls them t0, t1, ..."""
    items: Mapping[Program, Item] = field(repr=False)
    """What each program did."""

    def trace(self, *, kernel: str = "tilelens", costs: Costs | None = None, stages: int = 1) -> Recording:
        """The launch as a trace. `RecordError` if the programs cannot be put into one expression each."""
        items = [Item(i.program, _rolled(i.block), i.ops, {}, []) for i in self.items.values()]
        if not items:
            raise RecordError("the launch has no programs", hint="trace it without `grid_idx`")
        scalars = dict.fromkeys(_divided(self.grid), False)
        for item in items:
            item.scalars.update(scalars | dict.fromkeys(_variables(item.block), False))
        programs = set(self.items)
        try:
            folded = fold(items, self.grid, programs)
        except Mismatch:
            plain = [Item(i.program, i.block, i.ops, dict(scalars), []) for i in self.items.values()]
            folded = fold(plain, self.grid, programs)
        axes = max((i + 1 for i, n in enumerate(self.grid) if n > 1), default=1)
        declared = [Declared(f"t{i}", _bits(t.dtype), t.shape or (1,)) for i, t in enumerate(self.tensors)]
        origins = {"grid": " ".join(map(str, self.grid[:axes])), "recorded by": "tilelens"}
        out = emit(folded.block, kernel, declared, axes, costs or Costs(), stages, origins)
        first = items[0]
        return Recording(
            trace=Trace.text(str(out), "tilelens.tile"),
            grid=self.grid[:axes],
            work_item={"kernel": kernel, "grid": list(self.grid), "pid": list(first.program)},
            fitted=tuple(sorted(programs)),
            verified=(),
            notes=("TileLens keeps no elementwise work but sums", *folded.notes),
        )


def read_tilelens(path: str | os.PathLike[str]) -> list[SavedLaunch]:
    """Reads the launches of a file saved by TileLens, in their order. The tensors' data is not looked at."""
    where = str(path)
    try:
        with zipfile.ZipFile(Path(path)) as archive:
            manifest = json.loads(_member(archive, "manifest.json", where))
            with np.load(io.BytesIO(_member(archive, "tensors.npz", where)), allow_pickle=False) as file:
                if manifest.get("format") not in ("tilelens_trace", "triton_viz_trace") or manifest.get("version") != 1:
                    raise RecordError(
                        f"format {manifest.get('format')!r}, version {manifest.get('version')!r}",
                        path=where,
                        hint="save it with TileLens 3, or Triton-Viz",
                    )
                return [_launch(_fields(launch), file, where) for launch in manifest["launches"]]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, RecordError):
            raise
        raise RecordError(f"not a file saved by TileLens: {type(e).__name__}: {e}", path=where) from e


def _member(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    if archive.getinfo(name).file_size > MAX_BYTES:
        raise RecordError(f"{name} of more than {MAX_BYTES} bytes", path=where, hint="save fewer launches at a time")
    return archive.read(name)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a saved object, with its type as `kind`."""
    fields: dict[str, Any] = dict(value["fields"])
    fields["kind"] = value["type"].rsplit(":", 1)[-1]
    return fields


def _items(value: Any) -> list[Any]:
    return list(value if isinstance(value, list) else value["items"])


def _launch(launch: dict[str, Any], arrays: Any, where: str) -> SavedLaunch:
    saved = sorted((_fields(t) for t in _items(launch["tensors"])), key=lambda t: int(t["ptr"]))
    tensors = tuple(TensorSpec(tuple(_items(t["shape"])), str(t["dtype"]), tuple(_items(t["_stride"]))) for t in saved)
    places = {int(t["ptr"]): i for i, t in enumerate(saved)}
    sizes = [int(t["_element_size"]) for t in saved]
    x, y, z = (*(int(n) for n in _items(launch["grid"])), 1, 1)[:3]
    items: dict[Program, Item] = {}
    item: Item | None = None
    for record in map(_fields, launch["records"]):
        kind = record["kind"]
        if kind == "Grid":
            i, j, k = (*(int(n) for n in _items(record["idx"])), 0, 0)[:3]
            item = items.setdefault((i, j, k), Item((i, j, k), Block(()), [], {}, []))
            continue
        if item is None:
            raise RecordError("a record before its program", path=where)
        node = _node(record, places, sizes, arrays, item, where)
        if node is not None:
            item.ops.append(node)
            item.block.nodes.append(node)
    return SavedLaunch((x, y, z), tensors, {p: i for p, i in items.items() if i.ops})


def _node(
    record: dict[str, Any], places: dict[int, int], sizes: list[int], arrays: Any, item: Item, where: str
) -> Access | Work | None:
    kind = record["kind"]
    frames = record.get("call_path") or []
    line = int(_fields(frames[-1])["lineno"]) if frames else 0
    if kind in ("Load", "Store"):
        index = places.get(int(record["ptr"]))
        if index is None:
            raise RecordError("a transfer of a tensor that was not saved", path=where)
        bits = sizes[index] * 8
        offsets = np.asarray(arrays[record["offsets"]["key"]]).astype(np.int64)
        masks = np.broadcast_to(np.asarray(arrays[record["masks"]["key"]], dtype=bool), offsets.shape)
        if offsets.size == 1:
            offsets, masks = offsets.reshape(()), masks.reshape(())
        # What a store stores is not kept: it waits for what was made last.
        reads = _last(item) if kind == "Store" else []
        return Access(kind.lower(), index, bits, region(offsets // sizes[index], masks, bits), line, reads)
    if kind == "Dot":
        *batch, m, k = _items(record["input_shape"])
        n = _items(record["other_shape"])[-1]
        loads = [v for v in _made(item) if isinstance(v.producer, Access)][-2:]
        product = (int(m), int(n), int(k), int(np.prod(batch, dtype=np.int64)))
        return Work("dot", product, "float", 32, line, loads)
    if kind.startswith("Reduce"):
        shape = tuple(int(n) for n in _items(record["input_shape"]))
        return Work("reduce", shape, kind, 32, line, _last(item))
    return None


def _made(item: Item) -> list[Value]:
    """What the program has made so far, one block a step."""
    out = []
    for op in item.ops:
        if isinstance(op, Access) and op.kind == "load":
            out.append(Value(op, 0, int(np.prod(op.region.shape, dtype=np.int64)) * op.bits // 8))
        elif isinstance(op, Work):
            size = op.shape[0] * op.shape[1] if op.kind == "dot" else 1
            out.append(Value(op, 0, size * op.bits // 8))
    return out


def _last(item: Item) -> list[Value]:
    made = _made(item)
    work = [v for v in made if isinstance(v.producer, Work)]
    return work[-1:] or made


def _bits(dtype: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in dtype.removeprefix("torch.")).split()
    return int(digits[0]) if digits else 8


def _rolled(block: Block) -> Block:
    """The block with its longest repeated patterns as loops."""
    nodes: list[Any] = []
    keys = [_key(n) for n in block.nodes]
    at = 0
    while at < len(keys):
        best = (1, 1)
        for period in range(1, min(MAX_PERIOD, (len(keys) - at) // 2) + 1):
            pattern, count = keys[at : at + period], 1
            while keys[at + count * period : at + (count + 1) * period] == pattern:
                count += 1
            if count > 1 and count * period > best[0] * best[1]:
                best = (period, count)
        period, count = best
        if count == 1:
            nodes.append(block.nodes[at])
            at += 1
            continue
        path = (*block.path, len(nodes))
        loop = Loop(path, (0, count, 1), (const(0), None, const(1)), block.nodes[at].line)
        for i in range(count):
            loop.iterations.append((i, Block(path, block.nodes[at + i * period : at + (i + 1) * period])))
        nodes.append(loop)
        at += period * count
    return Block(block.path, nodes)


def _key(node: Any) -> tuple[Any, ...]:
    if isinstance(node, Access):
        return node.kind, node.tensor, node.bits, node.region.shape, node.line
    return node.kind, node.shape, node.function, node.line


def _variables(block: Block) -> list[Expr]:
    return [Expr("var", (n.path, True)) for n in block.nodes if isinstance(n, Loop)]


def _divided(grid: Program) -> list[Expr]:
    """The program ids divided by what may be a grid in itself, and what is left; and the grouped order of that."""
    out: list[Expr | None] = []
    for axis, extent in enumerate(grid):
        pid = Expr("pid", (axis,))
        divisors = [d for d in range(2, extent) if extent % d == 0][:MAX_DIVISORS]
        for d in divisors:
            quotient, rest = binary("c_div", pid, const(d)), binary("c_rem", pid, const(d))
            assert quotient is not None and rest is not None
            out += [quotient, rest]
            for group in (g for g in divisors if g < d):
                left, inner = binary("c_rem", rest, const(group)), binary("c_div", rest, const(group))
                assert left is not None and inner is not None
                out += [affine(0, [(group, quotient), (1, left)]), inner]
    return [e for e in out if e is not None]

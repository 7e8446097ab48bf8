"""Traces built in Python are those that the text means."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import tilesim
from tilesim import Expr, TraceBuilder, call, ceil_div, logical_and, logical_not, logical_or, maximum, minimum, select


def test_a_built_gemm_is_the_sample(client: tilesim.Client, samples: Path) -> None:
    b = TraceBuilder("gemm512_core_serial", axes=2, producer="pytorchsim", version="abi 15")
    b.measured(lanes=128, vector_bits=256, array_rows=128, array_cols=128, element="f32")
    b.origin("source", "TOGSim/tests/core_serial/gemm512_typed_producer.cpp")
    a, bb = b.tensor("A", 32, "in", [512, 512]), b.tensor("B", 32, "in", [512, 512])
    c = b.tensor("C", 32, "out", [512, 512])
    b.bounds_off()
    acc, bbuf, abuf = b.buffer("acc", 1048576), b.buffer("b", 262144), b.buffer("a", 262144)
    weights = b.buffer("weights", 0)
    init = b.tile("init", "vector", 183, source="measured")
    before_a = b.tile("before_a", "vector", 16, source="measured")
    before_b = b.tile("before_b", "vector", 6, source="measured")
    before_mm = b.tile("before_mm", "vector", 14, source="measured")
    preload = b.tile("preload", "preload", 51, source="measured")
    matmul = b.tile("matmul", "matmul", 1589, source="measured")
    p0, p1 = b.pids
    b.compute(init, writes=[acc])
    with b.loop(0, 512, 128, name="k") as k:
        b.compute(before_a)
        b.load(a, p0 * 512 * 512 + k, [(128, 1), (512, 512)], semaphore=0, writes=[abuf])
        b.compute(before_b)
        b.load(bb, k * 512 + p1 * 512, [(512, 1), (128, 512)], semaphore=1, writes=[bbuf])
        b.wait(0, 65536)
        b.wait(1, 65536)
        b.compute(before_mm)
        b.compute(preload, reads=[bbuf, abuf], writes=[weights])
        b.compute(matmul, reads=[acc, bbuf, abuf, weights], writes=[acc])
    b.store(c, p0 * 512 * 512 + p1 * 512, [(512, 1), (512, 512)], semaphore=2, reads=[acc])
    sample = client.put_trace(samples / "gemm512_core_serial.tile")
    assert client.put_trace(b).digest == sample.digest
    assert sample.kernel == "gemm512_core_serial"


def test_a_built_masked_matmul_is_the_sample(client: tilesim.Client, samples: Path) -> None:
    b = TraceBuilder("matmul_grouped", axes=1, producer="by hand")
    m, n, k, group = b.param("M"), b.param("N"), b.param("K"), b.param("GROUP", 8)
    ta, tb = b.tensor("A", 16, "in", [m, k]), b.tensor("B", 16, "in", [k, n])
    tc = b.tensor("C", 16, "out", [m, n])
    acc, a, bb, weights = b.buffer("acc", 65536), b.buffer("a", 16384), b.buffer("b", 16384), b.buffer("weights", 0)
    zero, push = b.tile("zero", "vector", 64), b.tile("push", "preload", 64)
    mma, cast = b.tile("mma", "matmul", 128), b.tile("cast", "vector", 128)
    b.dispatch(order=[0])
    (p,) = b.pids
    in_group = b.let("in_group", group * ceil_div(n, 128))
    first = b.let("first", p // in_group * group)
    rows = b.let("rows", minimum(group, ceil_div(m, 128) - first))
    mm = b.let("m", (first + p % in_group % rows) * 128)
    nn = b.let("n", p % in_group // rows * 128)
    b.compute(zero, writes=[acc])
    with b.loop(0, k, 64, name="k") as kk:
        km, mk, kn = minimum(64, k - kk), minimum(128, m - mm), minimum(128, n - nn)
        b.load(ta, mm * k + kk, [(128, k, mk), (64, 1, km)], semaphore=0, writes=[a])
        b.load(tb, kk * n + nn, [(64, n, km), (128, 1, kn)], semaphore=1, writes=[bb])
        b.wait(0, Expr("128 * 64"))
        b.wait(1, Expr("64 * 128"))
        b.compute(push, reads=[bb], writes=[weights])
        b.compute(mma, reads=[a, weights], writes=[acc])
    b.compute(cast, reads=[acc], writes=[acc])
    b.store(tc, mm * n + nn, [(128, n, mk), (128, 1, kn)], reads=[acc])
    assert client.put_trace(b).digest == client.put_trace(samples / "matmul_grouped.tile").digest


def test_a_built_gather_is_the_sample(client: tilesim.Client, samples: Path) -> None:
    b = TraceBuilder("gather_rows", axes=2, producer="by hand")
    rows = b.param("ROWS", 4096)
    (p0, p1), (g0, g1) = b.pids, b.grid
    table = b.tensor("table", 4, "in", [rows, 256], tiled=[8, 64])
    out = b.tensor("out", 4, "out", [g0, g1, 4, 256])
    buffer = b.buffer("rows", 512)
    flat = p0 * g1 + p1
    indices = [
        call("u_rem", call("trunc_i32", call("wrap_mul", flat, 2654435761)), rows) * 256,
        call("u_rem", call("trunc_u32", call("wrap_mul", flat + 1, 2654435761)), rows) * 256,
        (p0 ^ p1) % rows * 256,
        (rows - 1 - (p0 << 4 & 0xFF)) * 256,
    ]
    b.load(table, 0, [(256, 1)], indices=indices, semaphore=0, writes=[buffer])
    b.wait(0, Expr("4 * 256"))
    b.store(out, flat * 1024, [(4, 256), (256, 1)], reads=[buffer])
    assert client.put_trace(b).digest == client.put_trace(samples / "gather_rows.tile").digest


def _random_pair(random: random.Random, leaves: list[tuple[Expr | int, int]], depth: int) -> tuple[Expr | int, int]:
    """A random expression and its value, by Python's own arithmetic."""
    if depth == 0 or random.random() < 0.1:
        return random.choice([*leaves, *[(n, n) for n in (random.randint(-9, 99), 0)]])
    binary: list[tuple[Callable[[Expr, Expr], Expr], Callable[[int, int], int]]] = [
        *((op, op) for op in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)),
        *((op, op) for op in (operator.and_, operator.or_, operator.xor)),
        *((op, lambda x, y, op=op: int(op(x, y))) for op in (operator.lt, operator.le, operator.gt, operator.ge)),
        *((op, lambda x, y, op=op: int(op(x, y))) for op in (operator.eq, operator.ne)),
        (lambda x, y: x << (y & 7), lambda x, y: x << (y & 7)),
        (lambda x, y: x >> (y & 7), lambda x, y: x >> (y & 7)),
        (minimum, min),
        (maximum, max),
        (lambda x, y: ceil_div(x, y), lambda x, y: -(-x // y)),
        (logical_and, lambda x, y: int(bool(x and y))),
        (logical_or, lambda x, y: int(bool(x or y))),
        (lambda x, y: -x, lambda x, y: -x),
        (lambda x, y: ~x, lambda x, y: ~x),
        (lambda x, y: logical_not(x), lambda x, y: int(not x)),
        (lambda x, y: select(x, y, x), lambda x, y: y if x else x),
    ]
    while True:
        (a, x), (b, y) = (_random_pair(random, leaves, depth - 1) for _ in range(2))
        build, evaluate = random.choice(binary)
        if isinstance(a, int) and isinstance(b, int):
            # Python itself computes with two integers.
            continue
        try:
            value = evaluate(x, y)
        except ZeroDivisionError:
            continue
        if abs(value) < 1 << 40:
            return build(a, b), value  # type: ignore[arg-type]


def test_expressions_mean_what_python_means(client: tilesim.Client) -> None:
    choices = random.Random(1)
    for _ in range(20):
        b = TraceBuilder("expressions", axes=1)
        params = {f"v{i}": choices.choice([0, 1, -1, choices.randint(-(1 << 12), 1 << 12)]) for i in range(4)}
        leaves: list[tuple[Expr | int, int]] = [(b.param(name), value) for name, value in params.items()]
        x = b.tensor("x", 8, "in", [1])
        for _ in range(40):
            expression, value = _random_pair(choices, leaves, 4)
            if isinstance(expression, Expr):
                # Any other place but the first is outside of the tensor.
                b.load(x, expression != value)
        client.simulate(tilesim.Launch(b, [1], params))
    b.load(x, expression == value)
    with pytest.raises(tilesim.InvalidInput) as error:
        client.simulate(tilesim.Launch(b, [1], params))
    assert error.value.code == "trace.out_of_bounds"


def test_an_expression_has_no_truth_value() -> None:
    b = TraceBuilder(axes=1)
    with pytest.raises(TypeError, match="no truth value"):
        bool(b.pids[0] == 0)
    with pytest.raises(TypeError, match="expected an integer"):
        b.pids[0] + 1.5  # type: ignore[operator]
    with pytest.raises(TypeError, match="expected an integer"):
        b.pids[0] * True
    with pytest.raises(tilesim.InvalidInput, match="64-bit"):
        b.pids[0] + (1 << 63)
    with pytest.raises(tilesim.InvalidInput, match="takes 2 arguments"):
        call("min", 1)
    with pytest.raises(tilesim.InvalidInput, match="no function"):
        call("mni", 1, 2)


def test_a_variable_means_nothing_outside_its_block() -> None:
    b = TraceBuilder(axes=1)
    x = b.tensor("x", 8, "in", [64])
    with b.loop(4) as i:
        inner = b.let("inner", i + 1)
        b.load(x, inner)
    for value in (i, inner * 2):
        with pytest.raises(tilesim.InvalidInput) as error:
            b.load(x, value)
        assert error.value.code == "client.out_of_scope"


def test_blocks() -> None:
    b = TraceBuilder(axes=1)
    tile = b.tile("t", "vector", 1)
    with b.when(b.pids[0] < 2):
        b.compute(tile)
    with b.otherwise():
        b.compute(tile)
        with pytest.raises(tilesim.InvalidInput, match="still open"):
            b.build()
    b.compute(tile)
    with pytest.raises(tilesim.InvalidInput, match="does not follow"), b.otherwise():
        pass
    assert "} else {" in str(b)


def test_names_are_quoted_and_never_hide_another(client: tilesim.Client) -> None:
    b = TraceBuilder('a "kernel"\n', axes=1, producer="é")
    weird = b.param("p0", 3)
    named = b.param("i", 2)
    x = b.tensor("in put", 8, "in", [weird * named * 100])
    buffer = b.buffer("load", 64)
    with b.loop(2, name="i") as outer, b.loop(2, name="i") as inner:
        b.load(x, outer * 10 + inner + weird + named, semaphore=0, writes=[buffer])
        b.wait(0, 1)
    assert {str(outer), str(inner), str(named)} == {"i", "i_2", "i_3"}
    info = client.put_trace(b)
    assert (info.kernel, info.producer) == ('a "kernel"\n', "é")
    assert [(p.name, p.default_value) for p in info.params] == [("p0", 3), ("i", 2)]
    assert client.simulate(tilesim.Launch(b, [1])).report.dram_requests > 0


def test_declarations_arrive(client: tilesim.Client) -> None:
    b = TraceBuilder("all", axes=3)
    b.tensor("t", 4, "inout", [b.grid[0] * 8, 64], tiled=[8, 64])
    b.tile("f", "cross_lane", 7, overlap=3, analytic="n + 7")
    b.tile("u", "matmul", 5, admit=[("alu", "ops", 64, 0.5)])
    b.dispatch(order=[2, 0, 1], key=b.pids[1] * 2)
    b.resources(registers=4096, threads=128)
    info = client.put_trace(b)
    assert (info.axes, info.strict_bounds, info.registers, info.threads) == (3, True, 4096, 128)
    assert [(t.name, t.element_bits, t.role, t.axes) for t in info.tensors] == [("t", 4, "inout", 2)]
    assert [(t.name, t.cycles, t.overlap_cycles, t.source) for t in info.tiles] == [
        ("f", 7, 3, "analytic: n + 7"),
        ("u", 5, 0, "declared"),
    ]
    text = client.get_trace(info.digest)
    assert "dispatch order p2 p0 p1 key p1 * 2" in text
    with pytest.raises(tilesim.InvalidInput, match="declared twice"):
        b.buffer("x", 1), b.buffer("x", 2)


def test_the_server_says_what_is_wrong_with_a_trace(client: tilesim.Client) -> None:
    b = TraceBuilder(axes=1)
    b.load(b.tensor("x", 8, "in", [4]), 0, [(4, 1)] * 9)
    with pytest.raises(tilesim.InvalidInput) as error:
        client.put_trace(b)
    assert error.value.code == "trace.too_large"
    assert "line" in error.value.message and error.value.hint

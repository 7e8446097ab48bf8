"""Kernels that are recorded. They are recorded the same with and without TRITON_INTERPRET."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def softmax(out, x, x_stride, out_stride, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + row * x_stride + columns, mask=mask, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + columns, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def matmul(  # type: ignore[no-untyped-def]
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + pid % (GROUP * columns) % height
    n = pid % (GROUP * columns) // height
    am = (m * BM + tl.arange(0, BM)) % M
    bn = (n * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    at = a + am[:, None] * sam + k[None, :] * sak
    bt = b + k[:, None] * sbk + bn[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        left = tl.load(at, mask=k[None, :] < K - step * BK, other=0.0)
        right = tl.load(bt, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(left, right, total)
        at += BK * sak
        bt += BK * sbk
    cm = m * BM + tl.arange(0, BM)
    cn = n * BN + tl.arange(0, BN)
    tl.store(c + scm * cm[:, None] + scn * cn[None, :], total, mask=(cm[:, None] < M) & (cn[None, :] < N))


@triton.jit
def masked_matmul(a, b, c, M, N, K, B: tl.constexpr):  # type: ignore[no-untyped-def]
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def persistent_matmul(a, b, c, M, N, K, B: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.cdiv(M, B), tl.cdiv(N, B)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        first = tile // (GROUP * columns) * GROUP
        height = min(rows - first, GROUP)
        m = (first + tile % (GROUP * columns) % height) * B + tl.arange(0, B)
        n = tile % (GROUP * columns) // height * B + tl.arange(0, B)
        total = tl.zeros((B, B), dtype=tl.float32)
        for step in range(tl.cdiv(K, B)):
            k = step * B + tl.arange(0, B)
            left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
            right = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
            total = tl.dot(left, right, total)
        tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def layer_norm(x, y, weight, bias, stride, n, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0.0)
    mean = tl.sum(total, axis=0) / n
    spread = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * stride + at, mask=at < n, other=0.0)
        values = tl.where(at < n, values - mean, 0.0)
        spread += values * values
    scale = 1 / tl.sqrt(tl.sum(spread, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = (tl.load(x + row * stride + at, mask=at < n) - mean) * scale
        values = values * tl.load(weight + at, mask=at < n) + tl.load(bias + at, mask=at < n)
        tl.store(y + row * stride + at, values, mask=at < n)


@triton.jit
def gather_rows(table, index, out, n, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    chosen = tl.load(index + rows, mask=rows < n, other=0)
    values = tl.load(table + chosen[:, None] * WIDTH + columns[None, :], mask=(rows < n)[:, None])
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], values, mask=(rows < n)[:, None])


@triton.jit
def _attend(
    total, weight, top, q, k, v, begin, end, rows, length, D: tl.constexpr, B: tl.constexpr, MASK: tl.constexpr
):  # type: ignore[no-untyped-def]
    d = tl.arange(0, D)
    for start in range(begin, end, B):
        at = start + tl.arange(0, B)
        keys = tl.load(k + at[None, :] * D + d[:, None], mask=at[None, :] < length, other=0.0)
        scores = tl.dot(q, keys)
        if MASK:
            scores = tl.where(rows[:, None] >= at[None, :], scores, -1.0e6)
        new = tl.maximum(top, tl.max(scores, 1))
        powers = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(top - new)
        weight = weight * shrink + tl.sum(powers, 1)
        values = tl.load(v + at[:, None] * D + d[None, :], mask=at[:, None] < length, other=0.0)
        total = tl.dot(powers, values, total * shrink[:, None])
        top = new
    return total, weight, top


@triton.jit
def causal_attention(q, k, v, out, length, heads, sb, sh, D: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def]
    m, head = tl.program_id(0), tl.program_id(1)
    base = head // heads * sb + head % heads * sh
    rows = m * B + tl.arange(0, B)
    d = tl.arange(0, D)
    queries = tl.load(q + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    total = tl.zeros([B, D], tl.float32)
    weight = tl.zeros([B], tl.float32) + 1.0
    top = tl.zeros([B], tl.float32)
    total, weight, top = _attend(total, weight, top, queries, k + base, v + base, 0, m * B, rows, length, D, B, False)
    total, weight, top = _attend(
        total, weight, top, queries, k + base, v + base, m * B, min((m + 1) * B, length), rows, length, D, B, True
    )
    tl.store(out + base + rows[:, None] * D + d[None, :], total / weight[:, None], mask=rows[:, None] < length)


@triton.jit
def branches(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    p = tl.program_id(0)
    if p * BLOCK >= n:
        return
    if p == 5 and n > 0:
        tl.store(y + n + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)))
    for part in tl.static_range(4):
        at = p * BLOCK + part * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)
    count = 0
    while count < p % 3:
        tl.atomic_add(y + count, 1.0)
        count += 1


@triton.jit
def by_data(x, y, index, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    p = tl.program_id(0)
    if tl.load(index + p) > 0:
        tl.store(y + p * BLOCK + tl.arange(0, BLOCK), tl.load(x + p * BLOCK + tl.arange(0, BLOCK)))


@triton.jit
def scattered(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    p = tl.program_id(0)
    at = p + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * at * 7919 % 8191))


@triton.jit
def failing(x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.load(x + tl.arange(0, BLOCK) + 1)

"""Recording kernels with real Triton, against records of another recorder and against the real expander and engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import tilesim

# The decorators look at it when a kernel is defined; all tests of the package that use Triton set it.
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs the extra test-triton")

import numpy as np
import triton
import triton.language as tl
import triton_kernels as kernels
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from tilesim.triton import Costs, RecordError, Recording, TensorSpec, _interpret, read_tilelens, record

pytestmark = pytest.mark.triton

DATA = Path(__file__).parent / "data"


def floats(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float32")


def matmul(m: int, n: int, k: int, program: int = 0, grid: int | None = None, group: int = 8, **more: Any) -> Recording:
    blocks = {"BM": 64, "BN": 64, "BK": 32, "GROUP": group}
    args = (floats(m, k), floats(k, n), floats(m, n), m, n, k, k, 1, n, 1, n, 1)
    return record(kernels.matmul, grid or -(-m // 64) * -(-n // 64), args, (program,), kwargs=blocks, **more)


def add(n: int, program: int = 0, **more: Any) -> Recording:
    return record(
        kernels.add, lambda meta: (triton.cdiv(n, meta["BLOCK"]),), (floats(n), floats(n), floats(n), n), (program,),
        kwargs={"BLOCK": 1024}, **more,
    )  # fmt: skip


def softmax(program: int) -> Recording:
    args = (floats(64, 781), floats(64, 781), 781, 781, 781)
    return record(kernels.softmax, (64,), args, (program,), kwargs={"BLOCK": 1024})


def attention(**more: Any) -> Recording:
    q, k, v, out = (floats(2, 3, 300, 32) for _ in range(4))
    args = (q, k, v, out, 300, 3, 3 * 300 * 32, 300 * 32)
    return record(kernels.causal_attention, (5, 6), args, kwargs={"D": 32, "B": 64}, **more)


# The same facts as another recorder's.


@pytest.mark.parametrize(
    "name, run",
    [
        ("vecadd_98432_b1024", lambda p: add(98432, p)),
        ("softmax_64x781", softmax),
        ("matmul_200x136x96_64x64x32", lambda p: matmul(200, 136, 96, p)),
    ],
)
def test_records_hold_the_same_facts(name: str, run: Callable[[int], Recording]) -> None:
    files = sorted((DATA / "triton_workitems").glob(f"tutorial_{name}_pid*.json"))
    assert len(files) >= 2
    for file in files:
        wanted = json.loads(file.read_text())
        found = run(wanted["pid"][0]).work_item
        assert found["ops"] == wanted["ops"], file.name
        assert found["grid"] == wanted["grid"] and found["pid"] == wanted["pid"]
        sizes = [(a["dtype"], a["nbytes"], a["elem"]) for a in wanted["args"] if a["kind"] == "tensor"]
        assert [(a["dtype"], a["nbytes"], a["elem"]) for a in found["args"] if a["kind"] == "tensor"] == sizes


# The trace says, for every program, exactly what the interpreter touched.


def expanded(recording: Recording, program: tuple[int, ...], tmp_path: Path) -> Counter[tuple[str, str, int]]:
    """Elements that a work-item moves, as the trace language's own expander says, each with how often."""
    cli = Path(os.environ["TILESIM_DAEMON"]).with_name("tilesim")
    file = recording.save(tmp_path / "recorded.tile")
    ids, grid = (",".join(map(str, v)) for v in (program, recording.grid))
    shown = subprocess.run(
        [cli, "trace", "show", file, "--work-item", ids, "--grid", grid], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    bases = {n: int(a, 16) for n, a in re.findall(r"^tensor (\S+) .* at (0x[0-9a-f]+)", shown.stdout, re.M)}
    moved: Counter[tuple[str, str, int]] = Counter()
    line = re.compile(r"^\s*\d+\s+(load|store)\s+(\S+) at (0x[0-9a-f]+)(?: dims \[([^\]]*)\])? (\d+) x (\d+) bit", re.M)
    for verb, tensor, address, dims, count, bits in line.findall(shown.stdout):
        at = np.array([(int(address, 16) - bases[tensor]) * 8 // int(bits)])
        for extent, stride in re.findall(r"(\d+):(-?\d+)", dims):
            at = (at[:, None] + np.arange(int(extent)) * int(stride)).reshape(-1)
        assert at.size == int(count) or int(count) == 0, "a transfer that was not understood"
        if int(count):
            moved.update((verb, tensor, int(i)) for i in at)
    return moved


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Counter[tuple[str, str, int]]]]:
    """Elements that each program touched, from the raw pointers and masks of the interpreter."""
    seen: dict[Any, Counter[tuple[str, str, int]]] = {}
    own = _interpret._Recorder.access

    def access(self: Any, kind: str, ptrs: Any, mask: Any, reads: Any) -> Any:
        index, offsets, active, bits = own(self, kind, ptrs, mask, reads)
        counter = seen.setdefault(self.program, Counter())
        counter.update((kind, self.sources[index].name, int(i)) for i in offsets[active].reshape(-1))
        return index, offsets, active, bits

    monkeypatch.setattr(_interpret._Recorder, "access", access)
    yield seen


def args_of(m: int, n: int, k: int) -> tuple[Any, ...]:
    return floats(m, k), floats(k, n), floats(m, n), m, n, k


CASES: dict[str, Callable[..., Recording]] = {
    "vector add, ragged": lambda **o: add(5000, **o),
    "softmax": lambda **o: record(
        kernels.softmax, 5, (floats(5, 81), floats(5, 81), 81, 81, 81), kwargs={"BLOCK": 128}, **o
    ),
    "matmul, grouped and ragged": lambda **o: matmul(200, 136, 96, **o),
    "matmul, several groups": lambda **o: matmul(330, 136, 50, group=2, **o),
    "matmul, pipelined": lambda **o: matmul(200, 136, 96, stages=3, **o),
    "matmul on two axes": lambda **o: record(
        kernels.masked_matmul, (3, 3), args_of(70, 90, 50), kwargs={"B": 32}, **o
    ),
    "persistent matmul": lambda **o: record(
        kernels.persistent_matmul, 4, args_of(100, 90, 40), kwargs={"B": 32, "GROUP": 2}, **o
    ),
    "layer norm": lambda **o: record(
        kernels.layer_norm, 6, (floats(6, 300), floats(6, 300), floats(300), floats(300), 300, 300, 1e-5),
        kwargs={"BLOCK": 128}, **o,
    ),
    "causal attention": attention,
    "causal attention, pipelined": lambda **o: attention(stages=2, **o),
    "branches": lambda **o: record(
        kernels.branches, 40, (floats(1000), floats(2000), 1000), kwargs={"BLOCK": 32}, **o
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_work_item_moves_what_its_program_touches(
    name: str, touched: dict[Any, Counter[tuple[str, str, int]]], tmp_path: Path
) -> None:
    recording = CASES[name]()
    for program in product(*map(range, recording.grid)):
        full = (*program, 0, 0)[:3]
        if full not in touched:
            # Not among those the trace was made from or held against: run it now.
            CASES[name](program=program, every="program")
        assert expanded(recording, program, tmp_path) == touched.pop(full, Counter()), program


def test_the_engine_moves_the_bytes_of_each_program(client: tilesim.Client) -> None:
    def run(**more: Any) -> Recording:
        return record(kernels.masked_matmul, (3, 3), args_of(70, 90, 50), kwargs={"B": 32}, stages=2, **more)

    total = 0
    for program in product(range(3), range(3)):
        alone = run(program=program, every="program")
        lines = {"load": 0, "store": 0}
        for op in [o for o in alone.work_item["ops"] if o["op"] in lines]:
            rows, width = op["dims"]
            offsets = op["offset_bytes"] + np.arange(rows)[:, None] * op["stride_bytes"][0]
            valid = MASKS[op["op"], op["arg"]](program, op)
            at = (offsets + np.arange(width) * op["stride_bytes"][1])[: valid[0], : valid[1]]
            assert at.size == op["valid"]
            lines[op["op"]] += np.unique(at // 64).size
        dram = client.simulate(alone.launch(allow_cost_mismatch=True), machine="embedded_8x8").report.dram
        assert (dram.bytes_read, dram.bytes_written) == (64 * lines["load"], 64 * lines["store"]), program
        total += 64 * (lines["load"] + lines["store"])
    dram = client.simulate(run().launch(allow_cost_mismatch=True), machine="embedded_8x8").report.dram
    assert dram.bytes_read + dram.bytes_written == total


def _valid(rows: int, columns: int, row: int, column: int) -> tuple[int, int]:
    return max(0, min(32, rows - row)), max(0, min(32, columns - column))


MASKS: dict[tuple[str, int], Callable[[tuple[int, int], dict[str, Any]], tuple[int, int]]] = {
    # A step of K is told by the offset of its first element.
    ("load", 0): lambda p, op: _valid(70, 50, p[0] * 32, op["offset_bytes"] // 4 % 50),
    ("load", 1): lambda p, op: _valid(50, 90, op["offset_bytes"] // 4 // 90, p[1] * 32),
    ("store", 2): lambda p, op: _valid(70, 90, p[0] * 32, p[1] * 32),
}


def test_large_grids_are_held_against_programs_not_used() -> None:
    recording = matmul(4000, 3000, 64, group=8)
    assert len(recording.verified) >= 8
    assert not set(recording.fitted) & set(recording.verified)
    assert "c_rem" in recording.text or "%" in recording.text
    assert recording.text == matmul(4000, 3000, 64, group=8).text


# Form.


def test_loops_are_folded_and_stages_pipeline() -> None:
    blocking, staged = matmul(256, 256, 256).text, matmul(256, 256, 256, stages=3).text
    assert "for k in 0..8 {" in blocking and "async" not in blocking
    assert blocking.count("compute dot0") == 1
    assert {int(s) for s in re.findall(r"async (\d)", staged)} == {0, 1, 2}
    assert "dispatch order p0" in blocking
    assert "dispatch order p1 p0" in CASES["matmul on two axes"]().text


def test_costs_are_analytic_or_as_given() -> None:
    recording = matmul(200, 136, 96, costs=Costs(array_rows=8, array_cols=8, lanes=8, vector_bits=32))
    # Folds of 4 * 8, each of 2 * 8 + 8 + 64 - 2.
    assert "tile dot0 unit matmul cycles 2751 source analytic" in recording.text
    assert "measured lanes 8 vector_bits 32 array_rows 8 array_cols 8" in recording.text
    given = matmul(200, 136, 96, costs=Costs(cycles={"dot0": 77}))
    assert "tile dot0 unit matmul cycles 77 source declared" in given.text
    assert "measured" not in given.text
    # 64 * 64 * 32 products on 64 units.
    assert "tile dot0 unit matmul cycles 2048 " in matmul(200, 136, 96, costs=Costs(8, 8, matmul="peak")).text
    with pytest.raises(RecordError, match="lanes"):
        Costs(lanes=0)


def test_a_gather_counts_lines_and_keeps_no_data() -> None:
    index = np.random.default_rng(3).integers(0, 500, 70)
    args = (floats(500, 64), index, floats(70, 64), 70)
    recording = record(kernels.gather_rows, 5, args, (1,), kwargs={"WIDTH": 64, "ROWS": 16})
    (gathered,) = [o for o in recording.work_item["ops"] if o.get("gather")]
    distinct = len(set(index[16:32].tolist()))
    assert gathered["lines64"] == distinct * 4 and gathered["valid"] == 16 * 64
    assert re.search(r"load table\[0\] .* lines \d+ of 64 bytes reads", recording.text)
    assert "depend on data" in recording.notes[0]
    with pytest.raises(RecordError, match="pass the tensor itself"):
        record(
            kernels.gather_rows, 5, (args[0], TensorSpec((70,), "int64"), *args[2:]), kwargs={"WIDTH": 64, "ROWS": 16}
        )


# What cannot be said is refused; one program alone still can.


def test_control_flow_by_data_is_refused() -> None:
    index = np.array([1, 0, 1, 1])
    args = (floats(64), floats(64), index)
    with pytest.raises(RecordError, match=r"steps instead of .* every='program'"):
        record(kernels.by_data, 4, args, kwargs={"BLOCK": 16})
    alone = record(kernels.by_data, 4, args, (2,), kwargs={"BLOCK": 16}, every="program")
    assert alone.grid == (1,) and "load x[32]" in alone.text
    assert any("a condition on data" in n for n in alone.notes)


def test_what_no_expression_says_is_refused() -> None:
    args = (floats(8191), floats(200))
    with pytest.raises(RecordError, match=r"the number of lines of a load depends on the program .* every='program'"):
        record(kernels.scattered, 100, args, kwargs={"BLOCK": 64})
    alone = record(kernels.scattered, 100, args, (3,), kwargs={"BLOCK": 64}, every="program")
    at = np.arange(3, 67)
    lines = len(set((at * at * 7919 % 8191 // 16).tolist()))
    assert f"load x[0] dims [64: 0] lines {lines} of 64 bytes" in alone.text


def test_an_access_outside_its_tensor_is_refused() -> None:
    with pytest.raises(RecordError, match="elements 1 to 16 of 'x', which has 16"):
        record(kernels.failing, 1, (floats(16),), kwargs={"BLOCK": 16})


@pytest.mark.parametrize(
    "grid, program, match",
    [
        ((), (), "a grid"),
        ((1, 1, 1, 1), (), "a grid"),
        ((0,), (), "a grid"),
        ((2,), (2,), "program"),
        ((2,), (0, 1), "program"),
    ],
)
def test_grids_and_programs_are_checked(grid: Any, program: Any, match: str) -> None:
    with pytest.raises(RecordError, match=match):
        record(kernels.add, grid, (floats(9), floats(9), floats(9), 9), program, kwargs={"BLOCK": 16})


# Autotuners and heuristics.


def tuned(*configs: Any) -> Any:
    return triton.autotune(list(configs), key=["n"])(kernels.add)


def test_an_autotuner_needs_its_configuration() -> None:
    small, large = (triton.Config({"BLOCK": b}, num_stages=2) for b in (256, 1024))
    args = (floats(5000), floats(5000), floats(5000), 5000)
    grid = lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)  # noqa: E731
    tuner = tuned(small, large)
    before = dict(vars(tuner))
    with pytest.raises(RecordError, match="2 configurations"):
        record(tuner, grid, args)
    assert record(tuner, grid, args, config=large).text == add(5000).text
    assert record(tuner, grid, args, config=small).grid == (20,)
    assert record(tuned(large), grid, args).text == add(5000).text
    assert vars(tuner) == before
    with pytest.raises(RecordError, match="BLOCK given as an argument and by the configuration"):
        record(tuner, grid, args, config=large, kwargs={"BLOCK": 16})
    with pytest.raises(RecordError, match="without autotuner"):
        record(kernels.add, grid, args, config=large, kwargs={"BLOCK": 16})


def test_heuristics_are_evaluated() -> None:
    def block(args: dict[str, Any]) -> int:
        return 1024 if args["n"] > 4000 else 16

    args = (floats(5000), floats(5000), floats(5000), 5000)
    below = triton.heuristics({"BLOCK": block})(kernels.add)
    assert record(below, (5,), args).text == add(5000).text


def test_an_autotuner_prunes_by_what_is_recorded(client: tilesim.Client) -> None:
    from test_triton import N, Tensor

    rankings: list[tilesim.Ranking] = []

    def trace_for(config: Any, named_args: dict[str, Any], *, grid: Any, **kwargs: Any) -> tilesim.Launch:
        return record(tuner, grid, named_args, config=config).launch(allow_cost_mismatch=True)

    def bench(call: Callable[[], object], quantiles: object) -> list[float]:
        call()
        return [1.0] * 3

    tuner = triton.autotune(
        [triton.Config({"BLOCK": b}) for b in (16, 512, 64)],
        key=["n"],
        prune_configs_by={"early_config_prune": client.prune(trace_for=trace_for, keep=1, on_ranking=rankings.append)},
        do_bench=bench,
    )(kernels.add)
    x, y, out = np.arange(N, dtype=np.float32), np.ones(N, np.float32), np.zeros(N, np.float32)
    tuner[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](Tensor(x), Tensor(y), Tensor(out), N)
    assert (out == x + 1).all()
    assert tuner.best_config.kwargs["BLOCK"] == 512
    (ranking,) = rankings
    assert next(o.index for o in ranking.ranked) == 1
    assert all(o.status is not tilesim.results.Status.FAILED for o in ranking.outcomes)


def test_stages_come_with_the_configuration() -> None:
    config = triton.Config({"B": 32}, num_stages=3)
    tuner = triton.autotune([config], key=[])(kernels.masked_matmul)
    assert "async 2" in record(tuner, (3, 3), args_of(70, 90, 50)).text
    assert "async" not in record(tuner, (3, 3), args_of(70, 90, 50), stages=1).text


# Nothing of the caller's or of Triton's is changed.


def state() -> dict[str, Any]:
    places = {"tl": tl, "core": tl.core, "tensor": tl.core.tensor, "math": tl.math, "interpreter": interpreter}
    places |= {"function": interpreter.InterpretedFunction, "jit": JITFunction, "kernels": kernels}
    places["builder"] = interpreter.InterpreterBuilder
    return {f"{p}.{n}": v for p, place in places.items() for n, v in vars(place).items()}


def test_triton_is_left_as_it_was() -> None:
    before = state()
    attention()
    with pytest.raises(RecordError):
        record(kernels.failing, 1, (floats(16),), kwargs={"BLOCK": 16})
    after = state()
    assert {k for k in before | after if before.get(k) is not after.get(k)} == set()


def test_tensors_are_not_written() -> None:
    x, y, out = np.ones(100, np.float32), np.ones(100, np.float32), np.zeros(100, np.float32)
    recording = record(kernels.add, 1, (x, y, out, 100), kwargs={"BLOCK": 128})
    assert not out.any()
    assert (
        recording.text
        == record(kernels.add, 1, (floats(100), floats(100), floats(100), 100), kwargs={"BLOCK": 128}).text
    )


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "int64"])
def test_torch_tensors_are_recorded_and_not_written(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra test-torch")
    x, y, out = (torch.full((100,), v, dtype=getattr(torch, dtype)) for v in (1, 2, 0))
    recording = record(kernels.add, 1, (x, y, out, 100), kwargs={"BLOCK": 128})
    assert not out.any()
    specs = (TensorSpec((100,), dtype) for _ in range(3))
    assert recording.text == record(kernels.add, 1, (*specs, 100), kwargs={"BLOCK": 128}).text
    # Contents are read where addresses depend on them.
    index = np.random.default_rng(3).integers(0, 500, 70)
    args = (torch.zeros(500, 64), torch.from_numpy(index), torch.zeros(70, 64), 70)
    (gathered,) = [
        o
        for o in record(kernels.gather_rows, 5, args, (1,), kwargs={"WIDTH": 64, "ROWS": 16}).work_item["ops"]
        if o.get("gather")
    ]
    assert gathered["lines64"] == len(set(index[16:32].tolist())) * 4


def test_strides_and_repeated_tensors() -> None:
    x = np.zeros((64, 100), np.float32)[:, :90]
    out = np.zeros((64, 90), np.float32)
    text = record(kernels.softmax, 64, (out, x, 100, 90, 90), kwargs={"BLOCK": 128}).text
    assert "tensor x: 32 bit in [6390]" in text and "load x[p0 * 100] dims [128: 1 valid 90]" in text
    same = record(kernels.softmax, 64, (out, out, 90, 90, 90), kwargs={"BLOCK": 128}).text
    assert re.findall(r"^tensor .*", same, re.M) == ["tensor out: 32 bit inout [64, 90]"]


def test_threads_record_side_by_side() -> None:
    wanted = {m: matmul(m, 136, 96).text for m in (100, 130, 200, 250)}
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda m=m: found.update({m: matmul(m, 136, 96).text})) for m in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


def test_the_interpreter_need_not_be_chosen() -> None:
    script = (
        "import test_recording as t\n"
        "from tilesim.triton import record\n"
        "assert type(t.kernels.add).__name__ == 'JITFunction'\n"
        "print(t.attention().text + t.softmax(0).text, end='')\n"
    )
    # The module sets the variable for itself; here Triton is imported before.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = "import triton, triton_kernels\n" + script
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent, env=environment,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == attention().text + softmax(0).text


def test_recorded_traces_simulate(client: tilesim.Client) -> None:
    results = {name: client.simulate(run().launch(allow_cost_mismatch=True)).cycles for name, run in CASES.items()}
    assert all(cycles > 0 for cycles in results.values())
    assert results["causal attention, pipelined"] != results["causal attention"]


# TileLens.


def test_launches_saved_by_tilelens_are_read(client: tilesim.Client) -> None:
    (launch,) = read_tilelens(DATA / "tilelens_add.tvz")
    assert launch.grid == (4, 1, 1) and [t.shape for t in launch.tensors] == [(1000,)] * 3
    recording = launch.trace(kernel="add")
    ours = record(kernels.add, 4, (floats(1000), floats(1000), floats(1000), 1000), kwargs={"BLOCK": 256})
    moves = [re.findall(r"(load|store) \S+\[(.*?)\] dims \[(.*?)\]", t) for t in (recording.text, ours.text)]
    assert moves[0] == moves[1] and len(moves[0]) == 3
    assert client.simulate(recording.launch()).cycles > 0


def saved(path: Path, grid: tuple[int, int], m: int, n: int, k: int, block: int) -> None:
    """Writes what TileLens saves of a product in blocks, one axis of program ids, with a loop over K."""
    arrays: dict[str, Any] = {}

    def array(values: Any) -> dict[str, str]:
        arrays[f"arr_{len(arrays)}"] = values
        return {"kind": "array", "key": f"arr_{len(arrays) - 1}"}

    def made(name: str, **fields: Any) -> dict[str, Any]:
        return {"kind": "dataclass", "type": f"tilelens.core.data:{name}", "fields": fields}

    def line(number: int) -> list[Any]:
        return [
            {"kind": "dataclass", "type": "tilelens.utils.traceback_utils:TracebackInfo", "fields": {"lineno": number}}
        ]

    def several(*values: int) -> dict[str, Any]:
        return {"kind": "tuple", "items": list(values)}

    shapes = {4096: (m, k), 65536: (k, n), 131072: (m, n)}
    tensors = [
        made(
            "TensorSnapshot", ptr=p, dtype="torch.float32", _stride=several(s[1], 1), shape=several(*s), _element_size=4
        )
        for p, s in shapes.items()
    ]

    def move(name: str, ptr: int, row: int, column: int, number: int) -> dict[str, Any]:
        height, width = shapes[ptr]
        rows, columns = row + np.arange(block)[:, None], column + np.arange(block)[None, :]
        mask = (rows < height) & (columns < width)
        return made(
            name, ptr=ptr, offsets=array((rows * width + columns) * 4), masks=array(mask), call_path=line(number)
        )

    records = []
    for p in range(grid[0] * grid[1]):
        i, j = p // grid[1] * block, p % grid[1] * block
        records.append(made("Grid", idx=several(p, 0, 0)))
        for step in range(0, k, block):
            records += [move("Load", 4096, i, step, 7), move("Load", 65536, step, j, 8)]
            square = several(block, block)
            records.append(made("Dot", input_shape=square, other_shape=square, output_shape=square, call_path=line(9)))
        records.append(move("Store", 131072, i, j, 10))
    launch = made(
        "Launch", grid=several(grid[0] * grid[1], 1, 1), tensors={"kind": "set", "items": tensors}, records=records
    )
    manifest = {"format": "tilelens_trace", "version": 1, "launches": [launch]}
    payload = BytesIO()
    np.savez_compressed(payload, **arrays)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("tensors.npz", payload.getvalue())


def test_loops_and_rows_of_programs_come_back_from_tilelens(tmp_path: Path) -> None:
    path = tmp_path / "product.tvz"
    saved(path, (3, 4), 40, 56, 70, 16)
    (launch,) = read_tilelens(path)
    recording = launch.trace(stages=2)
    assert recording.grid == (12,) and recording.text.count("async") >= 4
    plain = launch.trace()
    assert re.search(r"for k in 0\.\.5 \{", plain.text)
    for p in range(12):
        wanted: Counter[tuple[str, str, int]] = Counter()
        rows, columns = (
            np.arange(p // 4 * 16, min(40, p // 4 * 16 + 16)),
            np.arange(p % 4 * 16, min(56, p % 4 * 16 + 16)),
        )
        inner = np.arange(70)
        wanted.update(("load", "t0", int(i)) for i in (rows[:, None] * 70 + inner).reshape(-1))
        wanted.update(("load", "t1", int(i)) for i in (inner[:, None] * 56 + columns).reshape(-1))
        wanted.update(("store", "t2", int(i)) for i in (rows[:, None] * 56 + columns).reshape(-1))
        for found in (plain, recording):
            assert expanded(found, (p,), tmp_path) == wanted, p


@pytest.mark.parametrize(
    "manifest, match",
    [
        (b"{}", "format None"),
        (b'{"format": "tilelens_trace", "version": 2}', "version 2"),
        (b'{"format": "tilelens_trace", "version": 1, "launches": [3]}', "not a file saved by TileLens"),
        (b"[", "not a file saved by TileLens"),
    ],
)
def test_other_files_are_refused(manifest: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "other.tvz"
    payload = BytesIO()
    np.savez(payload)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", manifest)
        archive.writestr("tensors.npz", payload.getvalue())
    with pytest.raises(RecordError, match=match):
        read_tilelens(path)
    path.write_bytes(b"no zip")
    with pytest.raises(RecordError, match="not a file saved by TileLens"):
        read_tilelens(path)

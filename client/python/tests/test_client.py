"""The client against a real daemon."""

from __future__ import annotations

import dataclasses
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tilesim
from kernels import copy, copy_launch, endless
from tilesim import Candidate, Launch, Machine, Problem, Replay, Status, _wire, results
from tilesim.v1 import common_pb2, machines_pb2, server_pb2, simulation_pb2, traces_pb2


def count_calls(client: tilesim.Client, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls that a client makes, by method."""
    calls: Counter[str] = Counter()
    real = client._open

    def counted(service: str, method: str, request: Any, deadline: Any) -> Any:
        calls[method] += 1
        return real(service, method, request, deadline)

    monkeypatch.setattr(client, "_open", counted)
    return calls


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something is so."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


@pytest.fixture
def server(daemon: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts servers with flags of their own; gives their addresses."""
    processes = []

    def start(*flags: str) -> str:
        folder = tmp_path / str(len(processes))
        folder.mkdir()
        port_file = folder / "port"
        command = [daemon, "--listen", "127.0.0.1:0", "--port-file", str(port_file), "--store", str(folder / "store")]
        processes.append(
            subprocess.Popen([*command, "--stop-with-stdin", "--log", "error", *flags], stdin=subprocess.PIPE)
        )
        eventually(port_file.exists)
        return f"127.0.0.1:{int(port_file.read_text())}"

    yield start
    for process in processes:
        process.communicate()


def test_a_result_says_where_the_cycles_went(client: tilesim.Client, samples: Path) -> None:
    result = client.simulate(Launch(samples / "gemm512_core_serial.tile", (1, 1)))
    report = result.report
    assert result.cycles == report.cycles > 0
    assert result.ns == pytest.approx(result.cycles / client.describe_machine().info.core_khz * 1e6, rel=1e-6)
    per_core: Counter[int] = Counter()
    for entry in report.cycle_stack:
        per_core[entry.core] += entry.cycles
    assert set(per_core.values()) == {result.cycles}
    assert sum(report.stack.values()) == result.cycles * len(report.cores)
    for core in report.cores:
        assert all(u.active_cycles + u.idle_cycles == result.cycles for u in core.units if u.unit != "dma")
    assert report.dram.bytes_read == 2 * 512 * 512 * 4
    assert sum(c.reads + c.writes for c in report.dram.channels) == report.dram_requests
    assert report.work_items == 1 and report.exactness == "exact_full"
    assert report.identity.trace == client.put_trace(samples / "gemm512_core_serial.tile").digest
    again = client.simulate(Launch(report.identity.trace, (1, 1)))
    assert again.report == report
    assert again.envelope.origin is tilesim.results.Origin.CACHED


MIRRORED = [
    (results.Identity, common_pb2.Identity),
    (results.Unit, simulation_pb2.UnitReport),
    (results.AdmittedUnit, simulation_pb2.AdmittedUnit),
    (results.Core, simulation_pb2.CoreReport),
    (results.CycleStackEntry, simulation_pb2.CycleStackEntry),
    (results.Counter, simulation_pb2.Counter),
    (results.ModelCounters, simulation_pb2.ModelCounters),
    (results.Channel, simulation_pb2.ChannelReport),
    (results.Numa, simulation_pb2.NumaReport),
    (results.Dram, simulation_pb2.DramReport),
    (results.Tile, simulation_pb2.TileReport),
    (results.Report, simulation_pb2.Report),
    (results.Envelope, simulation_pb2.Envelope),
    (results.Result, simulation_pb2.Result),
    (results.Pruned, simulation_pb2.Pruned),
    (results.Outcome, simulation_pb2.CandidateOutcome),
    (results.Place, simulation_pb2.RankedCandidate),
    (results.ReplayOutcome, simulation_pb2.ReplayResponse),
    (results.Job, simulation_pb2.Job),
    (results.TraceInfo, traces_pb2.TraceInfo),
    (results.TraceParam, traces_pb2.TraceParam),
    (results.TraceTensor, traces_pb2.TraceTensor),
    (results.TraceBuffer, traces_pb2.TraceBuffer),
    (results.TraceTile, traces_pb2.TraceTile),
    (results.StoredObject, traces_pb2.StoredObject),
    (results.Preset, machines_pb2.PresetInfo),
    (results.MachineInfo, machines_pb2.MachineInfo),
    (results.ServerInfo, server_pb2.ServerInfoResponse),
    (results.ServerLimits, server_pb2.ServerLimits),
    (results.ServerCounters, server_pb2.ServerCounters),
    (results.Durations, server_pb2.Durations),
    (Problem, common_pb2.Problem),
]


@pytest.mark.parametrize(("ours", "theirs"), MIRRORED, ids=lambda c: c.__name__)
def test_nothing_of_an_answer_is_left_out(ours: Any, theirs: Any) -> None:
    told = {f.name for f in dataclasses.fields(ours)} | set(vars(ours))
    assert [f.name for f in theirs.DESCRIPTOR.fields if f.name not in told] == []


@pytest.mark.parametrize(
    "enum", [(Status, "CandidateStatus"), (results.Origin, "Origin"), (results.JobState, "JobState")]
)
def test_enums_have_all_values(enum: Any) -> None:
    ours, theirs = enum
    values = simulation_pb2.DESCRIPTOR.enum_types_by_name[theirs].values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    assert [v.value for v in ours] == [v.name.removeprefix(prefix) for v in values]


def test_a_launch_says_all_that_the_wire_knows(client: tilesim.Client) -> None:
    launch = Launch("0" * 64, [2, 3], {"n": -1}, {"t": [4]}, {"t": 4096}, True, 1, 2, 3, True, 4, 5)
    assert None not in vars(launch).values()
    message = _wire.launch(launch, "0" * 64)
    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields)
    assert len(message.options.ListFields()) == len(message.options.DESCRIPTOR.fields)


def test_a_trace_is_uploaded_once(client: tilesim.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(client, monkeypatch)
    trace = copy(64, name="once")
    launches = [Launch(trace, [n // 64], {"N": n}) for n in (64, 128, 256)]
    for launch in launches:
        client.simulate(launch)
    client.rank([Candidate(launch) for launch in launches], progress=False)
    # The same content in another object is the same trace.
    client.simulate(Launch(copy(64, name="once"), [1], {"N": 64}))
    assert calls["Upload"] == 1
    # A server that has lost it gets it again.
    (digest,) = {client.put_trace(trace).digest}
    client.delete_trace(digest)
    assert client.missing_traces([digest]) == (digest,)
    client.simulate(launches[0])
    assert calls["Upload"] == 3
    assert client.missing_traces([digest]) == ()
    assert digest in {t.digest for t in client.list_traces()}


def test_the_forms_of_a_trace(client: tilesim.Client, samples: Path) -> None:
    path = samples / "gemm_256.json"
    info = client.put_trace(path)
    assert client.put_trace(tilesim.Trace(path.read_bytes(), "x.json")).digest == info.digest
    assert client.put_trace(info) == client.put_trace(info.digest) == client.describe_trace(info.digest) == info
    assert client.put_trace(tilesim.Trace.text(client.get_trace(info.digest))).digest == info.digest
    with pytest.raises(tilesim.InvalidInput, match="not the digest"):
        client.put_trace("gemm_256.json")


def test_machines(client: tilesim.Client, tmp_path: Path) -> None:
    machines = client.list_machines()
    assert "tpuv3" in {p.name for p in machines.presets}
    wide = Machine("tpuv3").override({"dram.channels": 8, "name": "wide"})
    described = client.describe_machine(wide)
    assert (described.info.dram_channels, described.info.name) == (8, "wide")
    path = tmp_path / "wide.yaml"
    path.write_text(described.document)
    assert client.check_machine(path) == described.info
    assert client.put_machine(path).digest == described.info.digest
    assert described.info.digest in {m.digest for m in client.list_machines().stored}
    launch = copy_launch(256)
    results = {client.simulate(launch, machine=m).report for m in (wide, described.info.digest, path)}
    assert len(results) == 1 and client.simulate(launch).report not in results
    with pytest.raises(tilesim.InvalidInput, match="only a whole description"):
        client.put_machine("tpuv3")
    with pytest.raises(tilesim.InvalidInput, match="exactly one source"):
        Machine("tpuv3", document="x")
    with pytest.raises(tilesim.InvalidInput) as error:
        client.check_machine(Machine("tpuv3").override({"dram.chanels": 8}))
    assert "chanels" in str(error.value)


def test_errors_carry_their_parts(client: tilesim.Client) -> None:
    with pytest.raises(tilesim.InvalidInput) as invalid:
        client.simulate(Launch(copy(64), [1, 1], {"N": 64}))
    error = invalid.value
    assert (error.code, error.path) == ("launch.axis_count", "launch.grid")
    assert error.message and error.hint
    assert pickle.loads(pickle.dumps(error)).problem == error.problem
    with pytest.raises(tilesim.NotFound) as missing:
        client.simulate(Launch("0" * 64, [1]))
    assert (missing.value.code, missing.value.path) == ("trace.not_found", "launch.trace_digest")
    with pytest.raises(tilesim.OverBudget) as over:
        client.simulate(Launch(copy(64), [64], {"N": 4096}, cycle_budget=100))
    assert over.value.cycles == 100
    assert pickle.loads(pickle.dumps(over.value)).cycles == 100
    with pytest.raises(tilesim.InvalidInput) as limit:
        client.simulate(Launch(copy(64), [64], {"N": 4096}, max_work_items=63))
    assert limit.value.code == "launch.too_many_work_items"
    with pytest.raises(tilesim.InvalidInput, match="no machine"), tilesim.Client() as other:
        other.simulate(copy_launch(64))


def test_verbs_that_this_server_has_not_say_so(client: tilesim.Client) -> None:
    for verb in (
        client.list_jobs,
        lambda: client.cancel_job("x"),
        lambda: client.submit_rank([Candidate(copy_launch(64))]),
        lambda: client.submit_replay([copy_launch(64)]),
        lambda: list(client.watch_job("x")),
    ):
        with pytest.raises(tilesim.Unimplemented) as error:
            verb()
        assert error.value.code == "server.no_jobs"


def test_a_ranking(client: tilesim.Client) -> None:
    blocks = [64, 1024, 256, 256, 128]
    candidates = [Candidate(copy_launch(b), f"block {b}") for b in blocks]
    candidates += [
        Candidate(key="broken", failure=Problem("compiler.oom", "kernel", "out of registers", "use fewer")),
        Candidate(Launch(copy(64), [1, 1], {"N": 64}), "wrong"),
        Candidate(Launch(copy(64), [64], {"N": 4096}, cycle_budget=10), "short"),
        Candidate([copy_launch(64), (copy_launch(128), 3)], "both"),
    ]
    ranking = client.rank(candidates, progress=False)
    score = [client.simulate(copy_launch(b)).cycles for b in blocks]
    both = score[0] + 3 * score[4]
    statuses = [o.status for o in ranking.outcomes]
    assert statuses == [
        Status.OK, Status.OK, Status.OK, Status.DUPLICATE_OF, Status.OK,
        Status.FAILED, Status.FAILED, Status.OVER_BUDGET, Status.OK,
    ]  # fmt: skip
    assert [o.index for o in ranking.outcomes] == list(range(len(candidates)))
    assert [o.key for o in ranking.outcomes] == [c.key for c in candidates]
    expected = sorted([*((s, i) for i, s in enumerate(score)), (both, 8)])
    assert [(p.score, p.index) for p in ranking.ranked] == expected
    assert ranking.ranked[0].margin == 0 and ranking.ranked[-1].margin == expected[-1][0] - expected[0][0]
    ties = {p.index: p.tie_group for p in ranking.ranked}
    assert ties[2] == ties[3] and len(set(ties.values())) == len(ties) - 1
    assert ranking.best is not None and ranking.best.index == expected[0][1]
    assert ranking.outcomes[3].duplicate_of == 2 and ranking.outcomes[3].score == score[2]
    assert ranking.outcomes[5].problem == candidates[5].failure
    wrong = ranking.outcomes[6].problem
    assert wrong is not None and wrong.code == "launch.axis_count" and wrong.hint
    assert ranking.outcomes[7].budget_cycles == 10
    assert [r.cycles for r in ranking.outcomes[8].results] == [score[0], score[4]]
    assert ranking.counts == {Status.OK: 5, Status.DUPLICATE_OF: 1, Status.FAILED: 2, Status.OVER_BUDGET: 1}


def test_the_best_of_a_ranking_are_the_same_with_top_k(client: tilesim.Client) -> None:
    candidates = [Candidate(copy_launch(2**n, cycles=c)) for n in range(5, 12) for c in (16, 48)]
    full = client.rank(candidates, progress=False)
    best = client.rank(candidates, top_k=3, progress=False)
    assert best.ranked[:3] == full.ranked[:3]
    assert all(o.status in (Status.OK, Status.PRUNED) for o in best.outcomes)


def test_a_ranking_of_failures_has_no_best(client: tilesim.Client) -> None:
    ranking = client.rank([Candidate(failure=Problem("x"))], progress=False)
    assert ranking.ranked == () and ranking.best is None and ranking.note
    with pytest.raises(tilesim.InvalidInput) as error:
        client.rank([], progress=False)
    assert error.value.code == "rank.no_candidates"


def test_outcomes_stream(client: tilesim.Client) -> None:
    """The first outcome is told while another candidate still runs, and leaving ends that one."""
    candidates = [Candidate(endless(), "endless"), Candidate(copy_launch(64), "short")]
    cancelled = client.info().counters.cancelled
    with client.rank_stream(candidates) as outcomes:
        first = next(outcomes)
        assert (first.key, first.status) == ("short", Status.OK)
    eventually(lambda: client.info().counters.cancelled == cancelled + 1)
    with client.rank_stream(candidates[1:]) as outcomes:
        assert [p.key for p in outcomes.ranking().ranked] == ["short"]


def test_another_thread_cancels(client: tilesim.Client) -> None:
    with client.rank_stream([Candidate(endless())]) as outcomes:
        eventually(lambda: client.info().running > 0)
        threading.Timer(0.1, outcomes.cancel).start()
        with pytest.raises(tilesim.Cancelled):
            next(outcomes)
    eventually(lambda: client.info().running == 0)


def test_a_deadline_ends_the_work(client: tilesim.Client) -> None:
    cancelled = client.info().counters.cancelled
    with pytest.raises(tilesim.DeadlineExceeded) as error:
        client.simulate(endless(), timeout=0.5)
    assert error.value.code == "run.deadline"
    with pytest.raises(tilesim.DeadlineExceeded):
        client.rank([Candidate(endless())], timeout=0.5, progress=False)
    with pytest.raises(tilesim.DeadlineExceeded):
        client.replay([endless()], timeout=0.5, progress=False)
    with pytest.raises(tilesim.DeadlineExceeded), tilesim.Client(machine="tpuv3", timeout=0.5) as hasty:
        hasty.simulate(endless())
    eventually(lambda: client.info().running == 0 and client.info().counters.cancelled > cancelled)


def test_closing_ends_calls(client: tilesim.Client) -> None:
    other = tilesim.Client(machine="tpuv3")
    other.info()
    with ThreadPoolExecutor() as pool:
        call = pool.submit(other.simulate, endless())
        eventually(lambda: client.info().running > 0)
        other.close()
        assert isinstance(call.exception(timeout=20), tilesim.Cancelled)
    # A later call connects again.
    assert other.simulate(copy_launch(64)).cycles > 0
    other.close()


def test_a_replay(client: tilesim.Client) -> None:
    launches: list[Launch | Replay] = [
        copy_launch(64),
        Replay(copy_launch(128), "named"),
        Replay(copy_launch(64), "elsewhere", Machine("tpuv3").override({"dram.channels": 1})),
        Replay(Launch(copy(64), [1, 1], {"N": 64}), "wrong"),
        Replay(Launch(copy(64), [64], {"N": 4096}, cycle_budget=10), "short"),
    ]
    outcomes = client.replay(launches, progress=False)
    assert [(o.index, o.key) for o in outcomes] == list(enumerate(["", "named", "elsewhere", "wrong", "short"]))
    assert outcomes[0].result is not None and outcomes[2].result is not None
    assert outcomes[0].result.report == client.simulate(copy_launch(64)).report
    assert outcomes[0].result.cycles < outcomes[2].result.cycles
    assert outcomes[3].problem is not None and outcomes[3].problem.code == "launch.axis_count"
    assert outcomes[4].over_budget_cycles == 10
    with client.replay_stream(launches) as stream:
        assert {o.index for o in stream} == set(range(5))


def test_frames(client: tilesim.Client) -> None:
    pytest.importorskip("pandas")
    result = client.simulate(copy_launch(64))
    stack = result.to_pandas()
    assert list(stack.columns) == ["core", "cause", "cycles"]
    assert (stack.groupby("core")["cycles"].sum() == result.cycles).all()
    units = result.report.units_to_pandas()
    assert units["ops"].sum() == sum(u.ops for c in result.report.cores for u in c.units)
    candidates = [Candidate(copy_launch(64), "a"), Candidate(failure=Problem("x.y", "p", "m"), key="b")]
    table = client.rank([*candidates[::-1], Candidate(copy_launch(1024), "c")], progress=False).to_pandas()
    assert list(table["key"])[2] == "b" and list(table["status"]) == ["OK", "OK", "FAILED"]
    assert list(table["place"])[:2] == [1, 2] and table["place"].isna()[2]
    assert table["score"][:2].is_monotonic_increasing and str(table["score"].dtype) == "Int64"
    assert table["problem"][2] == "p: m [x.y]"
    replayed = tilesim.replay_to_pandas(client.replay([copy_launch(64), endless_over()], progress=False))
    assert replayed["cycles"][0] == result.cycles and replayed["problem"][1] == "over budget at 5 cycles"
    assert list(tilesim.replay_to_pandas([]).columns) == list(replayed.columns)


def endless_over() -> Launch:
    """A launch that its budget ends."""
    return Launch(endless().trace, [1 << 28], cycle_budget=5)


def test_results_can_be_pickled(client: tilesim.Client) -> None:
    ranking = client.rank([Candidate(copy_launch(64))], progress=False)
    copied = pickle.loads(pickle.dumps(ranking))
    assert copied == ranking
    assert copied.best.results[0].report.cores == ranking.outcomes[0].results[0].report.cores
    with pytest.raises(AttributeError):
        ranking.note = "x"


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_progress(
    client: tilesim.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, with_tqdm: bool
) -> None:
    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    candidates = [Candidate(copy_launch(b)) for b in (64, 128, 256)]
    client.rank(candidates)
    assert capsys.readouterr().err == ""
    client.rank(candidates, progress=True)
    told = capsys.readouterr().err
    assert "3/3" in told and ("it/s" in told) == with_tqdm
    client.replay([copy_launch(64)], progress=True)
    assert "1/1" in capsys.readouterr().err


def test_eight_threads_rank_one_kernel_each(client: tilesim.Client) -> None:
    def candidates(kernel: int) -> list[Candidate]:
        return [Candidate(copy_launch(2**n, cycles=10 + kernel), f"{kernel}/{n}") for n in range(5, 12)]

    start = threading.Barrier(8)
    shared = tilesim.Client(machine="tpuv3")

    def rank(kernel: int) -> tilesim.Ranking:
        start.wait()
        return shared.rank(candidates(kernel), progress=False)

    with ThreadPoolExecutor(8) as pool:
        rankings = list(pool.map(rank, range(8)))
    shared.close()
    for kernel, ranking in enumerate(rankings):
        assert ranking.ranked == client.rank(candidates(kernel), progress=False).ranked
        assert len(ranking.ranked) == 7
    # All clients of the process talk to one daemon.
    assert client.info().counters.simulations >= 8 * 7


def test_a_full_queue_is_waited_for(server: Callable[..., str]) -> None:
    address = server("--workers", "1", "--queue", "1")
    with tilesim.Client(address, machine="tpuv3", timeout=120) as client, ThreadPoolExecutor(12) as pool:
        client.put_trace(copy(64))
        launches = [copy_launch(64, n=64 * n) for n in range(300, 312)]
        results = list(pool.map(client.simulate, launches))
        assert [r.report.work_items for r in results] == list(range(300, 312))


def test_addresses(server: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    address = server("--workers", "3")
    for name in (address, f"http://{address}", f"localhost:{address.partition(':')[2]}"):
        with tilesim.Client(name) as client:
            assert client.info().workers == 3
    monkeypatch.setenv("TILESIM_SERVER", address)
    with tilesim.Client() as client:
        assert client.info().workers == 3
    with pytest.raises(tilesim.InvalidInput, match="not an address"):
        tilesim.Client("https://example.com").info()


def test_tenants_see_nothing_of_each_other(server: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    address = server()
    with tilesim.Client(address, tenant="a") as a, tilesim.Client(address, tenant="b") as b:
        digest = a.put_trace(copy(64)).digest
        assert b.missing_traces([digest]) == (digest,)
        monkeypatch.setenv("TILESIM_TENANT", "a")
        with tilesim.Client(address) as again:
            assert again.missing_traces([digest]) == ()


def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with tilesim.Client(f"127.0.0.1:{taken.getsockname()[1]}") as client:
            with pytest.raises(tilesim.Unavailable) as error:
                client.info()
            assert (error.value.code, error.value.path) == ("client.unreachable", "address")
            with pytest.raises(tilesim.DeadlineExceeded):
                client.info(timeout=0.2)


def test_a_report_of_the_command_line_is_the_same(client: tilesim.Client, samples: Path, daemon: str) -> None:
    program = Path(daemon).with_name("tilesim")
    sample = samples / "gemm_256.json"
    command = [str(program), "simulate", str(sample), "--machine", "tpuv3", "--grid", "2,2", "--json"]
    there = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    here = client.simulate(Launch(sample, (2, 2))).report
    assert (there["cycles"], there["dram_requests"], there["ns"]) == (here.cycles, here.dram_requests, here.ns)
    assert there["identity"]["launch"] == here.identity.launch

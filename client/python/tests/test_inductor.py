"""Inductor's autotuner asks the simulator. With real PyTorch, on its CPU backend:

pip install './client/python[test,test-torch]' && pytest client/python/tests/test_inductor.py -m torch
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tilesim
from kernels import copy_launch
from tilesim.inductor import LAST_MS, Choice, simulated_autotune

torch = pytest.importorskip("torch", reason="needs the extra test-torch")

from torch._functorch import config as functorch
from torch._inductor import config
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    add_feedback_saver,
    add_preprocessing_fn,
    clear_feedback_savers,
    clear_preprocessing_fns,
    get_algorithm_selector_cache,
)
from torch._inductor.utils import fresh_cache

pytestmark = pytest.mark.torch

TUNED = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", "freezing": True}


@pytest.fixture
def timings() -> Iterator[list[dict[str, float]]]:
    """What Inductor learns of each tuning, by the names of choices; with caches of its own."""
    seen: list[dict[str, float]] = []
    with fresh_cache(), torch.no_grad(), config.patch(TUNED):
        torch.compiler.reset()
        add_feedback_saver(lambda times, *_: seen.append({c.name: t for c, t in times.items()}))
        yield seen
        clear_feedback_savers()
        torch.compiler.reset()


def compiled(rows: int = 64) -> tuple[Any, Any, Any]:
    """A compiled layer that has not run yet, its input, and what it is to give."""
    torch.manual_seed(0)
    layer, given = torch.nn.Linear(256, 512).eval(), torch.randn(rows, 256)
    torch.compiler.reset()
    return torch.compile(layer), given, layer(given)


def twin_of(choice: Any) -> Any:
    """A shallow copy; Inductor's wrappers cannot be copied by `copy`."""
    twin = type(choice).__new__(type(choice))
    vars(twin).update(vars(choice))
    return twin


def settings() -> Any:
    """What the context changes."""
    return (
        [vars(AlgorithmSelectorCache).get(n) for n in ("make_benchmark_fn", "lookup")],
        [getattr(config, n, None) for n in ("fx_graph_cache", "fx_graph_remote_cache", "pipeline_max_autotune_gemm")],
        config.precompilation_timeout_seconds,
        [getattr(functorch, n) for n in ("enable_autograd_cache", "enable_remote_autograd_cache")],
    )


def stored() -> Any:
    """What the tuner keeps from one process to the next."""
    return get_algorithm_selector_cache().get_local_cache()


def test_choices_get_simulated_times_and_extern_kernels_come_last(
    client: tilesim.Client, timings: list[dict[str, float]]
) -> None:
    asked: list[Choice] = []

    def trace_for(choice: Choice) -> tilesim.Launch:
        asked.append(choice)
        return copy_launch(64)

    before, kept = settings(), str(stored())
    model, given, expected = compiled()
    with simulated_autotune(client, trace_for, devices=["cpu"]) as tunings:
        assert settings() != before
        torch.testing.assert_close(model(given), expected, rtol=1e-4, atol=1e-4)
    assert settings() == before and str(stored()) == kept

    (choice,) = asked
    assert choice.name.startswith("cpp_") and choice.device == "cpu" and choice.info["backend"] == "CPP"
    assert choice.inputs[0].shape == (64, 256) and choice.inputs[0].dtype == "float32"
    assert (choice.output.shape, choice.output.stride) == ((64, 512), (512, 1))
    cycles = client.simulate(copy_launch(64)).cycles
    milliseconds = cycles / client.describe_machine().info.core_khz
    (tuning,) = tunings
    assert tuning.ranking.ranked[0].score == cycles
    (times,) = timings
    assert times == tuning.milliseconds
    assert times[choice.name] == pytest.approx(milliseconds)
    externs = [t for name, t in times.items() if name != choice.name]
    assert externs and set(externs) == {LAST_MS}


def test_the_simulated_best_of_several_is_picked(client: tilesim.Client, timings: list[dict[str, float]]) -> None:
    picked: list[str] = []

    def four_of_each_template(choices: list[Any]) -> list[Any]:
        """The same template under four names, each of which tells when it is picked."""
        made = []
        for choice in choices:
            if not hasattr(choice, "_wrapped"):
                made.append(choice)
                continue
            for n in range(4):
                twin = twin_of(choice)
                twin._wrapped = twin_of(choice._wrapped)
                twin._wrapped.name = f"twin{n}"
                twin.output_node = lambda n=n, real=choice.output_node: (picked.append(f"twin{n}"), real())[1]
                made.append(twin)
        return made

    def trace_for(choice: Choice) -> tilesim.Launch:
        if choice.name == "twin1":
            raise RuntimeError("no twin1")
        return copy_launch({"twin0": 64, "twin2": 1024, "twin3": 64}[choice.name])

    model, given, expected = compiled()
    add_preprocessing_fn(four_of_each_template)
    try:
        with simulated_autotune(client, trace_for, devices=["cpu"]) as tunings:
            torch.testing.assert_close(model(given), expected, rtol=1e-4, atol=1e-4)
    finally:
        clear_preprocessing_fns()
    (times,) = timings
    assert times["twin1"] == math.inf and times["twin0"] == times["twin3"] != times["twin2"]
    best = min(("twin0", "twin2"), key=times.__getitem__)
    # Of equal ones the first.
    assert picked == [best]
    assert [o.status.value for o in tunings[0].ranking.outcomes] == ["OK", "FAILED", "OK", "DUPLICATE_OF"]


def test_failures_are_infinite_and_extern_kernels_remain(
    client: tilesim.Client, timings: list[dict[str, float]]
) -> None:
    def trace_for(choice: Choice) -> tilesim.Problem:
        return tilesim.Problem("caller.no", "", "cannot")

    model, given, expected = compiled()
    with simulated_autotune(client, trace_for, devices=["cpu"]):
        torch.testing.assert_close(model(given), expected, rtol=1e-4, atol=1e-4)
    (times,) = timings
    assert sorted(times.values()) == [LAST_MS, math.inf]
    assert min(times, key=times.__getitem__).startswith("_mkl_linear")


def test_other_devices_are_measured(client: tilesim.Client, timings: list[dict[str, float]]) -> None:
    def trace_for(choice: Choice) -> tilesim.Launch:
        raise AssertionError("nobody asks")

    model, given, expected = compiled()
    with simulated_autotune(client, trace_for, devices=["cuda"]) as tunings:
        torch.testing.assert_close(model(given), expected, rtol=1e-4, atol=1e-4)
    assert tunings == []
    (times,) = timings
    assert all(0 < t < LAST_MS for t in times.values())


def test_simulated_times_reach_no_later_tuning(client: tilesim.Client, timings: list[dict[str, float]]) -> None:
    model, given, _ = compiled()
    with simulated_autotune(client, lambda choice: copy_launch(64), devices=["cpu"]) as tunings:
        model(given)
    again, given, expected = compiled()
    torch.testing.assert_close(again(given), expected, rtol=1e-4, atol=1e-4)
    simulated, measured = timings
    assert simulated == tunings[0].milliseconds
    assert len(measured) == len(simulated) and LAST_MS not in measured.values()
    # And measured times are not read within.
    third, given, _ = compiled()
    with simulated_autotune(client, lambda choice: copy_launch(128), devices=["cpu"]) as tunings:
        third(given)
    assert len(tunings) == 1 and timings[2] == tunings[0].milliseconds != simulated


def test_contexts_nest_and_an_exception_restores(
    client: tilesim.Client, timings: list[dict[str, float]], tmp_path: Path
) -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), simulated_autotune(client, lambda c: copy_launch(64), devices=["cpu"]):
        outer = settings()
        with pytest.raises(KeyError), simulated_autotune(client, lambda c: copy_launch(128), devices=["cpu"]):
            model, given, _ = compiled()
            model(given)
            raise KeyError
        assert settings() == outer
        raise ZeroDivisionError
    assert settings() == before
    cycles = client.simulate(copy_launch(128)).cycles
    assert min(timings[0].values()) == pytest.approx(cycles / client.describe_machine().info.core_khz)

    with (
        tilesim.Client("127.0.0.1:1", machine="tpuv3") as nobody,
        pytest.raises(tilesim.Unavailable),
        simulated_autotune(nobody, lambda c: copy_launch(64), devices=["cpu"]),
    ):
        raise AssertionError("not reached")
    assert settings() == before

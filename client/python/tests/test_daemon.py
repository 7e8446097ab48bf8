"""The local daemon: one per process, gone with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tilesim
from kernels import copy_launch
from tilesim import _daemon

TESTS = Path(__file__).parent


def running(folder: Path) -> list[int]:
    """Daemons whose store lies in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"--stop-with-stdin" in command and str(folder).encode() in command:
            found.append(int(process.name))
    return found


def run(script: str, folder: Path, **kwargs: str) -> subprocess.Popen[str]:
    """Runs a script whose temporary files lie in a folder."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(TESTS)} | kwargs
    header = "import os, sys, tilesim\nfrom kernels import copy_launch\nclient = tilesim.Client(machine='tpuv3')\n"
    return subprocess.Popen(
        [sys.executable, "-c", header + script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def gone(folder: Path) -> bool:
    """Whether all daemons of a folder end soon."""
    end = time.monotonic() + 20
    while running(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_clients_share_one_daemon_that_ends_with_the_process(tmp_path: Path) -> None:
    script = run("client.info(); tilesim.Client().info(); print('up', flush=True); input()", tmp_path)
    assert script.stdout is not None and script.stdout.readline() == "up\n"
    assert len(running(tmp_path)) == 1
    assert script.communicate("\n")[1] == ""
    assert script.returncode == 0
    assert running(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_the_daemon_does_not_outlive_a_killed_process(tmp_path: Path) -> None:
    script = run("client.info(); print('up', flush=True); input()", tmp_path)
    assert script.stdout is not None and script.stdout.readline() == "up\n"
    assert len(running(tmp_path)) == 1
    script.kill()
    script.communicate()
    assert gone(tmp_path)


def test_an_interrupt_reaches_the_script_and_not_the_daemon(tmp_path: Path) -> None:
    script = run(
        "from kernels import endless\n"
        "client.info(); print('up', flush=True)\n"
        "try: client.simulate(endless())\n"
        "except KeyboardInterrupt: print(client.simulate(copy_launch(64)).cycles > 0)\n",
        tmp_path,
    )
    assert script.stdout is not None and script.stdout.readline() == "up\n"
    time.sleep(0.3)
    script.send_signal(signal.SIGINT)
    assert script.communicate(timeout=30)[0] == "True\n"
    assert gone(tmp_path)


def test_a_forked_child_makes_its_own_client(tmp_path: Path) -> None:
    script = run(
        "expected = client.simulate(copy_launch(64)).cycles\n"
        "client.rank([tilesim.Candidate(copy_launch(64))], progress=False)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: client.info(); print('not refused')\n"
        "    except tilesim.ForkedClient: pass\n"
        "    own = tilesim.Client(machine='tpuv3')\n"
        "    assert own.simulate(copy_launch(64)).cycles == expected\n"
        "    assert own.info().counters.simulations == 1\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert client.simulate(copy_launch(128)).cycles > 0\n"
        "assert client.info().counters.simulations == 2\n",
        tmp_path,
    )
    assert script.communicate(timeout=60)[0] == ""
    assert script.returncode == 0
    assert gone(tmp_path) and list(tmp_path.iterdir()) == []


def test_children_of_multiprocessing(tmp_path: Path) -> None:
    script = run(
        "import multiprocessing\n"
        "def work(n): return tilesim.Client(machine='tpuv3').simulate(copy_launch(n)).cycles\n"
        "expected = [client.simulate(copy_launch(n)).cycles for n in (64, 128)]\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    assert pool.map(work, (64, 128)) == expected\n"
        "    pool.close(); pool.join()\n",
        tmp_path,
    )
    assert script.communicate(timeout=60)[0] == ""
    assert script.returncode == 0
    assert gone(tmp_path) and [p for p in tmp_path.iterdir() if p.name.startswith("tilesim-")] == []


def test_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    script = run(
        "import signal, subprocess\n"
        "client.info()\n"
        "from tilesim import _daemon\n"
        "_daemon._daemon._process.kill(); _daemon._daemon._process.wait()\n"
        "try: client.info(); print('answered')\n"
        "except tilesim.Unavailable: pass\n"
        "print(tilesim.Client().info().uptime_ms >= 0)\n",
        tmp_path,
    )
    assert script.communicate(timeout=60)[0] == "True\n"
    assert gone(tmp_path) and list(tmp_path.iterdir()) == []


def test_where_the_daemon_is_found(daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIM_DAEMON", str(tmp_path / "tilesimd"))
    with pytest.raises(tilesim.DaemonError, match="TILESIM_DAEMON"):
        _daemon.find()
    monkeypatch.delenv("TILESIM_DAEMON")
    monkeypatch.setenv("PATH", str(tmp_path))
    checkout = tmp_path / "checkout"
    (checkout / "proto/tilesim/v1").mkdir(parents=True)
    (checkout / "proto/tilesim/v1/simulation.proto").touch()
    (checkout / "Cargo.toml").touch()
    (checkout / "below").mkdir()
    built = checkout / "target/debug/tilesimd"
    built.parent.mkdir(parents=True)
    monkeypatch.chdir(checkout / "below")
    monkeypatch.setattr(_daemon, "__file__", str(tmp_path / "elsewhere/tilesim/_daemon.py"))
    monkeypatch.delenv("CARGO_TARGET_DIR", raising=False)
    with pytest.raises(tilesim.DaemonError, match="no tilesimd and no tilesim"):
        _daemon.find()
    shutil.copy("/bin/sh", built)
    assert _daemon.find() == [str(built)]
    shutil.copy("/bin/sh", tmp_path / "tilesim")
    assert _daemon.find() == [str(tmp_path / "tilesim"), "serve"]
    shutil.copy("/bin/sh", tmp_path / "tilesimd")
    assert _daemon.find() == [str(tmp_path / "tilesimd")]


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "tilesimd"
    broken.write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(tilesim.DaemonError) as error:
        _daemon._Daemon([str(broken)])
    assert "status 3" in error.value.message and "no luck today" in error.value.hint
    with pytest.raises(tilesim.DaemonError, match="cannot start"):
        _daemon._Daemon([str(tmp_path)])


def test_the_command_line_serves_as_well(daemon: str, tmp_path: Path) -> None:
    program = Path(daemon).with_name("tilesim")
    script = run("print(client.simulate(copy_launch(64)).cycles)", tmp_path, TILESIM_DAEMON=str(program))
    cycles = tilesim.Client(machine="tpuv3").simulate(copy_launch(64)).cycles
    assert script.communicate(timeout=60)[0] == f"{cycles}\n"

"""What all tests share. They run against a real daemon, built by cargo unless TILESIM_DAEMON names one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilesim

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", autouse=True)
def daemon() -> str:
    """The daemon's program. Nothing of the environment but that reaches the tests."""
    for name in [n for n in os.environ if n.startswith("TILESIM_") and n != "TILESIM_DAEMON"]:
        del os.environ[name]
    if "TILESIM_DAEMON" not in os.environ:
        build = ["cargo", "build", "--locked", "-p", "tilesim-server", "-p", "tilesim-client", "--bins"]
        subprocess.run(build, cwd=REPOSITORY, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
        os.environ["TILESIM_DAEMON"] = str(target / "debug" / "tilesimd")
    return os.environ["TILESIM_DAEMON"]


@pytest.fixture
def client() -> Iterator[tilesim.Client]:
    """A client of the process's own daemon."""
    with tilesim.Client(machine="tpuv3", timeout=120) as client:
        yield client


@pytest.fixture
def samples() -> Path:
    """The sample traces."""
    return REPOSITORY / "traces" / "samples"

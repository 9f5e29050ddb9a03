"""The command line where SGLang is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sgguard

# SGLang, diffusers and torch are hidden by a finder: this machine may have them.
HIDE = """
import importlib.util, sys
hidden = {hidden!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if any(name == h or name.startswith(h + ".") for h in hidden):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "sglang" else real(name, *a)
sys.argv = ["sgguard", *{arguments!r}]
from sgguard.cli import main
main()
"""


def run(*arguments: str, hidden: tuple[str, ...] = ()) -> str:
    hidden = ("sglang", "diffusers", "torch", *hidden)
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden, arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version() -> None:
    assert run("--version") == f"sgguard, version {sgguard.__version__}\n"


def test_help_names_the_commands() -> None:
    out = run("--help")
    for name in ("demo", "check", "schema"):
        assert f"  {name} " in out


def test_demo_on_the_stand_in() -> None:
    out = run("demo")
    assert "SGLang is not installed" in out
    assert "pip install sglang" in out
    titles = [line for line in out.splitlines() if line.startswith(("action:", "spans", "metrics"))]
    assert len(titles) == 9
    assert all("(STAND-IN, not SGLang)" in title for title in titles)
    assert "'READ' normalised to 'read' (case)" in out
    assert "'trt' fell_back to 'auto'" in out
    assert "write -> none" in out


def test_demo_without_the_sdk() -> None:
    out = run("demo", hidden=("opentelemetry.sdk",))
    assert "pip install 'sgguard[otel]'" in out
    assert "  glm_image.kv_cache.mode fell_back: 1" in out


@pytest.mark.parametrize("command", ["demo", "check", "schema"])
def test_each_command_has_help(command: str) -> None:
    assert f"{command} [OPTIONS]" in run(command, "--help")

"""The command line where SGLang is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def run(*arguments: str, hidden: tuple[str, ...] = ()) -> str:
    hidden = ("sglang", "diffusers", "torch", *hidden)
    done = python(HIDE.format(hidden=hidden, arguments=arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version() -> None:
    assert run("--version") == f"sgguard, version {sgguard.__version__}\n"


def test_help_names_the_commands() -> None:
    out = run("--help")
    for name in ("demo", "check", "schema"):
        assert f"  {name} " in out


def test_importing_the_command_line_is_light() -> None:
    heavy = ("torch", "sglang", "pydantic", "yaml", "rich")
    code = f"import sys, sgguard.cli; print([n for n in {heavy!r} if n in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_the_example_policy_loads() -> None:
    policy = sgguard.load_policy(EXAMPLES / "policy.yaml")
    actions = {key: entry.action for key, entry in policy.points.items()}
    assert actions == {
        "glm_image.kv_cache.mode": "fallback",
        "diffusion.backend": "normalise",
        "srt.cp_strategy": "normalise",
        "srt.*": "normalise",
    }


def test_demo_where_sglang_cannot_be_imported(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("print('noise')\nraise ImportError('no such library')\n")
    done = python("from sgguard.cli import main; main(['demo'])", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (
        "sglang.multimodal_gen.runtime.models.dits.glm_image\nImportError: no such library\n"
    ) in done.stdout
    assert "noise" not in done.stdout
    assert "action: fallback  (STAND-IN, not SGLang)" in done.stdout


def test_demo_where_sgguard_is_switched_off() -> None:
    code = HIDE.format(hidden=("sglang", "diffusers", "torch"), arguments=("demo",))
    done = python(code, SGGUARD_DISABLED="1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "SGGUARD_DISABLED is set" in done.stderr


def test_demo_leaves_the_process_as_it_was() -> None:
    code = HIDE.format(hidden=("sglang", "diffusers", "torch"), arguments=("demo",)).replace(
        "main()",
        "main(standalone_mode=False)\n"
        "import logging, sgguard\n"
        "log = logging.getLogger('sgguard')\n"
        "print(log.propagate, log.handlers, sgguard.status().installed)",
    )
    assert python(code).stdout.endswith("\nTrue [] False\n")


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
    for value, outcome in (
        ("'READ'", "normalised (case)"),
        ("' Write'", "normalised (case)"),
        ("'prefill'", "normalised (aliases)"),
        ("'recycle'", "fell back"),
        ("None", "accepted"),
    ):
        last = [line for line in out.splitlines() if f"set_mode({value})" in line][-1]
        assert [cell.strip() for cell in last.strip("│").split("│")][2] == outcome
    assert max(map(len, out.splitlines())) <= 100


def test_demo_without_the_sdk() -> None:
    out = run("demo", hidden=("opentelemetry.sdk",))
    assert "pip install 'sgguard[otel]'" in out
    assert "  glm_image.kv_cache.mode fell_back: 1" in out
    assert "normalised (white_space)" in out  # the steps do not depend on spans


@pytest.mark.parametrize("command", ["demo", "check", "schema"])
def test_each_command_has_help(command: str) -> None:
    assert f"{command} [OPTIONS]" in run(command, "--help")

"""``sgguard demo`` on the real SGLang: each value of the tour, under each policy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def output() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sgguard.cli", "demo"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def section(output: str, action: str) -> str:
    return output.split(f"action: {action}", 1)[1].split("action: ", 1)[0]


def row(text: str, call: str) -> list[str]:
    """The cells of a call's row in the first table."""
    line = next(line for line in text.splitlines() if call in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_it_says_what_ran(output: str) -> None:
    assert re.search(r"SGLang 0\.5\.\d+, imported in \d+\.\d s", output)
    assert "STAND-IN" not in output
    assert max(map(len, output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("call", "observe", "normalise", "fallback"),
    [
        ("set_mode('write')", "accepted", "accepted", "accepted"),
        ("set_mode('READ')", "refused", "normalised (case)", "normalised (case)"),
        ("set_mode(' Write')", "refused", "normalised (case)", "normalised (case)"),
        *[("set_mode(<RefactoredMode.READ", "refused", *["normalised (enum_value)"] * 2)],
        ("set_mode('prefill')", "refused", "normalised (aliases)", "normalised (aliases)"),
        ("set_mode('recycle')", "refused", "refused", "fell back"),
        ("set_mode(None)", "accepted", "accepted", "accepted"),
        ("clear()", "watched", "watched", "watched"),
        *[("Backend.from_string('Diffusers ')", "refused", *["normalised (white_space)"] * 2)],
        ("Backend.from_string('trt')", "refused", "refused", "fell back"),
        ("RoleType.from_string('denoising')", "accepted", "accepted", "accepted"),
    ],
)
def test_outcomes(output: str, call: str, observe: str, normalise: str, fallback: str) -> None:
    expected = {"observe": observe, "normalise": normalise, "fallback": fallback}
    for action, outcome in expected.items():
        _, got, said = row(section(output, action), call)
        assert said.startswith(outcome)
        assert (got == "-") is (outcome == "refused")


def test_spans_metrics_and_note(output: str) -> None:
    assert "skip -> none" in section(output, "observe")
    assert "' Write' normalised to 'write' (case)" in section(output, "normalise")
    assert "'trt' fell_back to 'auto'" in section(output, "fallback")
    for action in ("observe", "normalise", "fallback"):
        text = section(output, action)
        for metric in ("calls", "invalid_values", "transitions", "mode.duration", "policy.info"):
            assert f"│ sgguard.{metric} " in text
        assert re.search(r"sgguard\.calls +│ diffusion\.role +│ outcome=accepted: 1 ", text)
    # Counts of one policy alone, though the process has counted three.
    text = section(output, "fallback")
    assert re.search(r"sgguard\.calls +│ glm_image\.kv_cache\.mode +│ outcome=accepted: 6 ", text)
    assert "│ mode.from=write mode.to=skip: 1 " in text
    assert "points: {glm_image.kv_cache.mode: {action: normalise}}" in output


def test_the_readme_shows_real_output(output: str) -> None:
    """Every line of the README's blocks is a line of this run."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    blocks = re.findall(r"```text\n(.*?)```", readme, re.S)
    assert len(blocks) == 2
    release = re.search(r"SGLang (0\.5\.\d+)", output)
    assert release is not None
    lines = {line.rstrip() for line in output.splitlines()}
    for line in "".join(blocks).replace("0.5.23", release[1]).splitlines():
        assert line.rstrip() in lines

"""Each example does what its text says, on the real SGLang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sgguard

pytestmark = pytest.mark.sglang

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline_script() -> None:
    out = run("offline_script.py")
    assert "set_mode('READ'): Invalid mode: READ, must be one of 'write', 'read', 'skip'" in out
    assert "points: {glm_image.kv_cache.mode: {action: normalise}}" in out
    assert "mode now: read" in out
    assert "ServerArgs.from_kwargs(backend='trt'): Invalid backend: trt" in out
    assert re.search(r"diffusion.backend +active +observe +sglang: refused 2\n", out)
    assert "sgguard installed, policy none from built-in" in out
    assert re.search(
        r"glm_image.kv_cache.mode +active +observe +sglang: accepted 2, refused 2\n", out
    )
    assert re.search(r"srt.cp_strategy +waiting +observe +sglang\n", out)
    assert "diffusion.pipeline_type" not in out  # no release of today has it


def test_offline_script_with_the_policy() -> None:
    path = EXAMPLES / "policy.yaml"
    out = run("offline_script.py", SGGUARD_POLICY=str(path))
    assert "set_mode('READ'): None" in out
    assert "mode now: write" in out  # prefill
    assert "Backend.from_string('HF'): <Backend.DIFFUSERS: 'diffusers'>" in out
    assert "ServerArgs.from_kwargs(backend='trt'): Invalid backend: trt" in out  # no alias
    assert f"policy {sgguard.load_policy(path).fingerprint} from {path}" in out


def test_console_telemetry() -> None:
    out = run("console_telemetry.py")
    spans = [json.loads(text) for text in re.findall(r"^\{\n.*?^\}", out, re.S | re.M)]
    found = [
        (s["name"], s["attributes"].get("sgguard.mode.to"), s["attributes"].get("sgguard.outcome"))
        for s in spans
        if "attributes" in s
    ]
    assert found == [
        ("sglang.kv_cache.set_mode", "write", None),
        ("sgguard.invalid_value", None, "normalised"),
        ("sglang.kv_cache.set_mode", "read", None),
        ("sglang.kv_cache.set_mode", "none", None),
    ]
    for name in ("sgguard.calls", "sgguard.transitions", "sgguard.points"):
        assert f'"name": "{name}"' in out


def test_the_policy_is_good() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sgguard.cli", "check", str(EXAMPLES / "policy.yaml")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr

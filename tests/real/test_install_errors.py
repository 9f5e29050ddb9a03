"""Bad input: install() says what is wrong and where, and changes nothing; auto only logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sgguard

pytestmark = pytest.mark.sglang

FALLBACK = """\
version: 1
points:
  glm_image.kv_cache.mode:
    action: fallback
    fallback: skipp
  diffusion.backend:
    action: normalise
    aliases:
      hf: difusers
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def test_a_fallback_and_an_alias_that_sglang_refuses(recorded: Any, file: Path) -> None:
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache
    from sglang.multimodal_gen.runtime.server_args import Backend

    before = vars(Backend)["from_string"], vars(GlmImageKVCache)["set_mode"]
    file.write_text(FALLBACK)
    with pytest.raises(sgguard.InvalidPolicyError) as caught:
        sgguard.install(file)
    assert str(caught.value).splitlines() == [
        f"{file}:5:5: points.glm_image.kv_cache.mode.fallback: SGLang does not accept 'skipp' "
        "there; it accepts 'write', 'read', 'skip', None",
        f"{file}:9:7: points.diffusion.backend.aliases.hf: SGLang does not accept 'difusers' "
        "there; it accepts 'auto', 'sglang', 'diffusers'",
    ]
    assert not sgguard.status().installed
    assert (vars(Backend)["from_string"], vars(GlmImageKVCache)["set_mode"]) == before


def test_the_policy_in_force_stays(recorded: Any, file: Path) -> None:
    from sglang.multimodal_gen.runtime.server_args import Backend

    recorded.install({"points": {"diffusion.backend": {"action": "normalise"}}})
    fingerprint = sgguard.status().policy_fingerprint
    file.write_text(FALLBACK)
    with pytest.raises(sgguard.PolicyError):
        sgguard.install(file)
    assert sgguard.status().policy_fingerprint == fingerprint
    assert Backend.from_string(" AUTO") is Backend.AUTO


def run_auto(policy: Path, module: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import sgguard.auto, sgguard
import {module}
from sglang.multimodal_gen.runtime.server_args import Backend
try:
    print(Backend.from_string("AUTO "))
except ValueError as error:
    print(error)
print(sgguard.status().policy_source)
print([(p.state, p.action, bool(p.problem)) for p in sgguard.status().points
       if p.point == "diffusion.backend"])
"""
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "SGGUARD_POLICY": str(policy)},
    )


def test_auto_with_a_policy_that_sglang_contradicts(file: Path) -> None:
    """Found out when SGLang's module is imported: logged, that point observed, no exception."""
    file.write_text(FALLBACK)
    done = run_auto(file, "sglang.multimodal_gen.runtime.server_args")
    assert done.stdout.splitlines()[-3:] == [
        "Invalid backend: AUTO . Must be one of: auto, sglang, diffusers",
        str(file),
        "[('active', 'observe', True)]",
    ]
    assert "diffusion.backend is only observed" in done.stderr
    assert f"{file}:9:7: points.diffusion.backend.aliases.hf" in done.stderr


def test_auto_with_a_policy_that_is_wrong(file: Path) -> None:
    file.write_text("version: 1\npoints:\n  diffusion.backnd: {action: normalise}\n")
    done = run_auto(file, "sglang.multimodal_gen.runtime.server_args")
    assert done.stdout.splitlines()[-2:] == ["built-in", "[('active', 'observe', False)]"]
    assert f"{file}:3:3: points.diffusion.backnd: unknown point" in done.stderr
    assert "did you mean 'diffusion.backend'?" in done.stderr


def test_auto_with_a_good_policy(file: Path) -> None:
    file.write_text("version: 1\npoints:\n  diffusion.backend: {action: normalise}\n")
    done = run_auto(file, "sglang.multimodal_gen.runtime.server_args")
    assert done.stdout.splitlines()[-3:] == [
        "Backend.AUTO",
        str(file),
        "[('active', 'normalise', False)]",
    ]

"""``sgguard check`` against the real SGLang: what it says, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sgguard
from sgguard import check as check_
from sgguard.policy_file import parse_policy

pytestmark = pytest.mark.sglang

GOOD = """\
version: 1
points:
  glm_image.kv_cache.mode:
    action: fallback
    aliases: {prefill: write}
    fallback: skip
  "srt.*": {action: normalise, when: {rank: 0}}
"""


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sgguard.cli", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120"},
    )


@pytest.fixture(scope="module")
def verified() -> list[check_.Verified]:
    return check_.verify()


def test_a_good_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    done = run(str(path))
    assert done.returncode == 0, done.stderr
    for text in ("glm_image.kv_cache.mode", "prefill -> 'write'", "else 'skip'", "when rank 0"):
        assert text in done.stdout
    assert "against SGLang 0.5." in done.stdout.splitlines()[-1]
    fingerprint = sgguard.load_policy(path).fingerprint
    assert fingerprint in done.stdout.splitlines()[-1]


def test_what_sglang_contradicts_as_json(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("skip", "skipp").replace("prefill: write", "read: write"))
    done = run(str(path), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "ok": False,
        "problems": [
            {
                "message": "SGLang itself accepts 'read' there; remove the alias",
                "key": "points.glm_image.kv_cache.mode.aliases.read",
                "line": 5,
                "column": 15,
            },
            {
                "message": "SGLang does not accept 'skipp' there; it accepts 'write', 'read', "
                "'skip', None",
                "key": "points.glm_image.kv_cache.mode.fallback",
                "line": 6,
                "column": 5,
            },
        ],
    }


def test_sglang_at_a_path(tmp_path: Path) -> None:
    import sglang

    (tmp_path / "sglang").symlink_to(Path(sglang.__file__).parent, target_is_directory=True)
    done = run("--sglang", str(tmp_path), "--json", "inline:{version: 1}")
    assert done.returncode == 0, done.stderr
    rows = {row["point"]: row for row in json.loads(done.stdout)["points"]}
    assert rows["srt.cp_strategy"]["accepted"] == ["'zigzag'", "'interleave'"]
    assert rows["diffusion.pipeline_type"]["verified"] is False
    assert "not in SGLang" in rows["diffusion.pipeline_type"]["why_not"]
    done = run("--sglang", str(tmp_path / "nowhere"), "inline:{version: 1}")
    assert done.returncode == 2
    assert "there is no sglang/__init__.py there" in done.stderr


@pytest.mark.parametrize(
    ("policy", "question", "expected"),
    [
        (
            "{defaults: {action: normalise}}",
            "srt.cp_strategy=ZigZag",
            [("as it came", "'ZigZag'", False), ("step case", "'zigzag'", True)],
        ),
        ("{}", "srt.cp_strategy=zigzag", [("as it came", "'zigzag'", True)]),
        (
            "{defaults: {action: normalise}}",
            "srt.cp_attention_backend= 'trtllm-MHA' ",
            [
                ("as it came", "\" 'trtllm-MHA' \"", False),
                ("step white_space", "'trtllm-MHA'", False),
                ("step case", "'trtllm-mha'", False),
                ("step separators", "'trtllm_mha'", True),
            ],
        ),
        (
            "{points: {diffusion.backend: {action: fallback, fallback: auto, "
            "aliases: {hf: diffusers}}}}",
            "diffusion.backend=trt",
            [
                ("as it came", "'trt'", False),
                ("fallback", "'auto'", True),
            ],
        ),
        (
            "{points: {diffusion.backend: {action: normalise, aliases: {hf: diffusers}}}}",
            "diffusion.backend=HF",
            [
                ("as it came", "'HF'", False),
                ("step case", "'hf'", False),
                ("step aliases", "'diffusers'", True),
            ],
        ),
    ],
)
def test_explain(
    verified: list[check_.Verified], policy: str, question: str, expected: list[Any]
) -> None:
    source = parse_policy("{version: 1, " + policy[1:], "p")
    steps = check_.explain(source.policy, question, verified)
    shown = [(s.what, s.value, s.accepted) for s in steps]
    assert [s for s in shown if "separators" not in s[0] or s[2]] == expected


def test_explain_does_what_a_call_does(verified: list[check_.Verified], recorded: Any) -> None:
    """The explanation and the guard itself never disagree."""
    from sglang.multimodal_gen.runtime.server_args import Backend

    text = (
        "{version: 1, points: {diffusion.backend: "
        "{action: fallback, fallback: sglang, aliases: {hf: diffusers}}}}"
    )
    source = parse_policy(text, "p")
    recorded.install(source.policy)
    for value in ("auto", " AUTO", "'Hf'", "trt", "", "dif-fusers", "ＡＵＴＯ"):
        last = check_.explain(source.policy, f"diffusion.backend={value}", verified)[-1]
        count = len(recorded.invalid())
        Backend.from_string(value)
        if last.what == "as it came":
            assert len(recorded.invalid()) == count
            continue
        attributes = recorded.invalid()[-1]
        assert attributes["sgguard.value.applied"] == last.value
        step = attributes.get("sgguard.step")
        assert last.what == (f"step {step}" if step else "fallback")


def test_explain_a_refusal(verified: list[check_.Verified]) -> None:
    source = parse_policy("{version: 1}", "p")
    last = check_.explain(source.policy, "srt.cp_strategy=zigzig", verified)[-1]
    assert last.what == (
        "refused under action observe: SGLang's exception reaches the caller; the closest "
        "value is 'zigzag', which is named and not used"
    )


def test_asking_leaves_sglang_as_it_was(verified: list[check_.Verified]) -> None:
    from sglang.multimodal_gen.runtime.server_args import Backend

    assert type(vars(Backend)["from_string"]) is classmethod
    assert not sgguard.status().installed

"""A policy file edited while SGLang's own functions are being called."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sgguard

pytestmark = pytest.mark.sglang

POINT = "diffusion.backend"


def backend() -> Any:
    from sglang.multimodal_gen.runtime.server_args import Backend

    return Backend


def write(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def wait_for(condition: Callable[[], object], seconds: float = 8.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


def policy(action: str, more: str = "") -> str:
    return f"version: 1\npoints:\n  {POINT}: {{action: {action}{more}}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(policy("observe"))
    return path


def fingerprint() -> str:
    return sgguard.status().policy_fingerprint


def test_an_edit_is_in_force_within_seconds(recorded: Any, file: Path) -> None:
    cls = backend()
    recorded.install(file)
    first = fingerprint()
    with pytest.raises(ValueError, match="Invalid backend"):
        cls.from_string(" auto")
    write(file, policy("fallback", ", fallback: sglang"))
    wait_for(lambda: fingerprint() != first)
    assert cls.from_string("trt") is cls.SGLANG
    assert recorded.invalid()[0]["sgguard.policy.fingerprint"] == first
    assert recorded.invalid()[1]["sgguard.policy.fingerprint"] == fingerprint()
    assert recorded.metric("sgguard.policy.reloads") == {("applied",): 1}
    assert recorded.metric("sgguard.policy.info") == {(fingerprint(), str(file)): 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\npoints: {diffusion.backnd: {}}\n", "did you mean 'diffusion.backend'?"),
        (policy("fallback", ", fallback: trt"), "SGLang does not accept 'trt' there"),
        (policy("normalise", ", aliases: {auto: sglang}"), "SGLang itself accepts 'auto' there"),
        ("version: 1\n\t", "indent with spaces"),
    ],
)
def test_a_wrong_edit_changes_nothing_and_says_why(
    recorded: Any, file: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    cls = backend()
    file.write_text(policy("normalise"))
    recorded.install(file)
    before = fingerprint()
    with caplog.at_level(logging.ERROR, "sgguard"):
        write(file, text)
        wait_for(lambda: caplog.records)
    assert "stays in force" in caplog.records[0].getMessage()
    assert said in caplog.records[0].getMessage()
    assert f"{file}:" in caplog.records[0].getMessage()
    assert fingerprint() == before
    assert cls.from_string(" auto") is cls.AUTO
    wait_for(lambda: recorded.metric("sgguard.policy.reloads") == {("invalid",): 1})
    write(file, policy("observe"))
    wait_for(lambda: fingerprint() != before)


def test_deleting_the_file_keeps_the_policy(recorded: Any, file: Path) -> None:
    file.write_text(policy("normalise"))
    recorded.install(file)
    file.unlink()
    time.sleep(1.5)
    assert backend().from_string(" auto").value == "auto"
    assert recorded.metric("sgguard.policy.reloads") == {}


def test_at_restart_pins(recorded: Any, file: Path) -> None:
    pinned = policy("normalise") + "reload: {mode: at_restart}\n"
    recorded.install(file)
    write(file, pinned)  # an edit may itself end the reloading
    wait_for(lambda: backend_accepts(" auto"))
    write(file, policy("observe"))
    time.sleep(1.5)
    assert backend_accepts(" auto")
    assert "sgguard-policy" not in [t.name for t in threading.enumerate()]


def backend_accepts(value: str) -> bool:
    try:
        backend().from_string(value)
    except ValueError:
        return False
    return True


def test_reload_under_load(recorded: Any, file: Path) -> None:
    """Each call sees one whole policy, none fails, and every valid one comes into force.

    Both policies repair the value, to different members; a call that saw half of one and half
    of the other would leave the pairs seen here.
    """
    cls = backend()
    texts = [
        policy("fallback", ", fallback: sglang, aliases: {hf: sglang}"),
        policy("fallback", ", fallback: diffusers, aliases: {hf: diffusers}"),
    ]
    write(file, texts[0])
    recorded.install(file)
    logging.getLogger("sgguard").setLevel(logging.CRITICAL)
    prints = set()
    failed: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            for _ in range(50_000):
                one, two = cls.from_string("hf"), cls.from_string("trt")
                assert {one, two} <= {cls.SGLANG, cls.DIFFUSERS}
        except BaseException as error:
            failed.append(error)
        done.set()

    # Spans of 100,000 refused values are not what this test is about.
    with sgguard_spans_off():
        worker = threading.Thread(target=call)
        worker.start()
        for number in range(200):
            write(file, texts[number // 2 % 2] if number % 2 else "version: 1\npoints: [")
            time.sleep(0.02)
            prints.add(fingerprint())
        worker.join()
    assert done.is_set()
    assert failed == []
    assert len(prints) == 2
    reloads = recorded.metric("sgguard.policy.reloads")
    assert reloads["applied",] > 0
    assert reloads["invalid",] > 0
    calls = recorded.metric("sgguard.calls")
    assert calls["normalised", POINT] == 50_000
    assert calls["fell_back", POINT] == 50_000


def sgguard_spans_off() -> Any:
    from unittest import mock

    from sgguard.telemetry import Telemetry

    return mock.patch.object(Telemetry, "_invalid_span", return_value=None)


def test_sighup_is_left_alone(recorded: Any, file: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)
    recorded.install(file)
    assert signal.getsignal(signal.SIGHUP) is before


def test_the_orchestrator_expects_its_refusal(
    recorded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with an unknown role is turned away as without the guard, and is no incident."""
    from sglang.multimodal_gen.runtime.disaggregation.orchestrator import DiffusionServer
    from sglang.multimodal_gen.runtime.disaggregation.roles import RoleType

    recorded.install({"points": {"diffusion.role": {"action": "fallback", "fallback": "server"}}})
    with caplog.at_level(logging.WARNING):
        DiffusionServer._handle_transfer_register(SimpleNamespace(_pools={}), {"role": "spy"})
    assert [r.name.partition(".")[0] for r in caplog.records] == ["sglang"]
    assert "unknown role" in caplog.records[0].getMessage()
    assert recorded.spans() == []
    assert recorded.metric("sgguard.invalid_values") == {}
    assert recorded.metric("sgguard.calls") == {("expected", "diffusion.role"): 1}
    # Anywhere else the fallback holds.
    assert RoleType.from_string("spy") is RoleType.SERVER


def test_conditions_on_the_caller(recorded: Any) -> None:
    cls = backend()
    recorded.install(
        {
            "points": {
                POINT: {"action": "normalise", "when": {"caller": "test_live_*"}},
                "diffusion.*": {"log": "none", "spans": "none"},
            }
        }
    )
    assert cls.from_string(" auto") is cls.AUTO
    elsewhere: dict[str, Any] = {"__name__": "some.module", "cls": cls}
    exec("def call(): return cls.from_string(' auto')", elsewhere)  # noqa: S102
    with pytest.raises(ValueError, match="Invalid backend"):
        elsewhere["call"]()
    assert len(recorded.spans()) == 1


def test_levels(recorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    cls = backend()
    for level, expected in (("error", [logging.ERROR]), ("debug", []), ("none", [])):
        caplog.clear()
        recorded.install({"points": {POINT: {"log": level, "action": "normalise"}}})
        with caplog.at_level(logging.INFO, "sgguard"):
            cls.from_string(f" auto{' ' * len(level)}")
        assert [r.levelno for r in caplog.records] == expected


def test_steps_off(recorded: Any) -> None:
    recorded.install(
        {"points": {POINT: {"action": "normalise", "normalise": {"white_space": False}}}}
    )
    with pytest.raises(ValueError, match="Invalid backend"):
        backend().from_string("'auto'")


def test_fallback_null(recorded: Any) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    point = "srt.speculative_algorithm"
    recorded.install({"points": {point: {"action": "fallback", "fallback": None}}})
    assert SpeculativeAlgorithm.from_string("xyz") is SpeculativeAlgorithm.NONE
    assert recorded.invalid()[0]["sgguard.value.applied"] == "None"
    with pytest.raises(sgguard.InvalidPolicyError, match="SGLang does not accept None there"):
        recorded.install({"points": {POINT: {"action": "fallback", "fallback": None}}})


def test_override(recorded: Any, file: Path) -> None:
    cls = backend()
    with sgguard.override({"points": {POINT: {"action": "normalise"}}}):
        assert cls.from_string(" auto") is cls.AUTO
        with sgguard.override({"defaults": {"action": "observe"}}):
            assert not backend_accepts(" auto")
        assert backend_accepts(" auto")
    assert not sgguard.status().installed
    recorded.install(file)
    before = fingerprint()

    def fail_inside() -> None:
        with sgguard.override({"points": {POINT: {"action": "normalise"}}}):
            assert backend_accepts(" auto")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert fingerprint() == before
    assert not backend_accepts(" auto")
    wrong = sgguard.override({"point": {}})
    with pytest.raises(sgguard.InvalidPolicyError, match="unknown key"):
        wrong.__enter__()
    write(file, policy("normalise"))  # the file is watched again
    wait_for(lambda: backend_accepts(" auto"))


SHOW = """
import sgguard.auto
from sglang.multimodal_gen.runtime.server_args import Backend
{more}
try:
    print(Backend.from_string(" auto").value)
except ValueError:
    print("refused")
status = __import__("sgguard").status()
print(status.installed, status.policy_source)
"""


@pytest.mark.parametrize(
    ("environment", "more", "expected", "said"),
    [
        ({}, "", ["refused", "True built-in"], ""),
        ({"SGGUARD_ACTION": "normalize"}, "", ["auto", "True SGGUARD_ACTION"], ""),
        (
            {"SGGUARD_ACTION": "fallback"},
            "",
            ["refused", "True built-in"],
            "SGGUARD_ACTION='fallback' is not one of observe, normalise (a fallback needs",
        ),
        (
            {"SGGUARD_POLICY": "inline:{version: 1, defaults: {action: normalise}}"},
            "",
            ["auto", "True inline"],
            "",
        ),
        (
            {"SGGUARD_POLICY": "inline:version: 1", "SGGUARD_ACTION": "normalise"},
            "",
            ["refused", "True inline"],
            "SGGUARD_ACTION is ignored",
        ),
        ({"SGGUARD_POLICY": "inline:{version: 3}"}, "", ["refused", "True built-in"], "inline:1:2"),
        (
            {"SGGUARD_POLICY": "inline:version: 1"},
            "import sgguard; sgguard.install(sgguard.Policy(version=1, "
            "defaults={'action': 'normalise'}))",
            ["auto", "True python"],
            "",
        ),
        (
            {"SGGUARD_DISABLED": "1", "SGGUARD_ACTION": "normalise"},
            "import sgguard; sgguard.install()",
            ["refused", "False built-in"],
            "",
        ),
        ({"SGGUARD_DISABLED": "0", "SGGUARD_ACTION": "normalise"}, "", ["auto", "True"], ""),
    ],
)
def test_environment_and_its_precedence(
    environment: dict[str, str], more: str, expected: list[str], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(more=more)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, **environment},
    )
    lines = done.stdout.splitlines()[-2:]
    assert lines[0] == expected[0], done.stderr
    assert lines[1].startswith(expected[1])
    assert said in done.stderr

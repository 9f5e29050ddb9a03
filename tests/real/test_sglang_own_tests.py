"""SGLang's own unit tests end the same, test by test, with the guard on and without it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sglang

FILES = (
    "test_disagg_roles",
    "test_diffusion_plugins",
    "test_glm_image_multi_output",
    "test_glm_image_attention",
    "test_disagg_trace",
)


def outcomes(directory: Path, *options: str) -> dict[str, str]:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    unit = Path(spec.submodule_search_locations[0]) / "multimodal_gen" / "test" / "unit"
    report = directory / f"report{len(options)}.xml"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider",
            "-p", "no:randomly", f"--junit-xml={report}", f"--rootdir={directory}", *options,
            *[str(unit / f"{name}.py") for name in FILES],
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "SGGUARD_TEST_STATUS": str(directory / "status.json"),
        },
    )  # fmt: skip
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by pytest just now
        failed = case.find("failure") if case.find("failure") is not None else case.find("error")
        result = "passed"
        if failed is not None:
            result = f"failed: {failed.get('message', '').splitlines()[0]}"
        elif case.find("skipped") is not None:
            result = "skipped"
        found[f"{case.get('classname')}::{case.get('name')}"] = result
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("own")
    found: dict[str, Any] = {
        "without": outcomes(directory),
        "with": outcomes(directory, "-p", "guard_plugin"),
    }
    found["status"] = json.loads((directory / "status.json").read_text())
    return found


def test_same_outcomes(runs: dict[str, Any]) -> None:
    assert runs["with"] == runs["without"]


def test_the_comparison_means_something(runs: dict[str, Any]) -> None:
    """Most of them really ran and passed, and the guard really was on."""
    results = list(runs["without"].values())
    assert len(results) > 75
    assert results.count("passed") > 70
    status = runs["status"]
    assert {"glm_image.kv_cache.mode", "diffusion.role", "diffusion.backend"} <= set(
        status["active"]
    )
    assert status["lost"] == []
    assert status["guard_errors"] == {}
    assert status["calls"]["diffusion.role"]["accepted"] > 0
    assert status["calls"]["diffusion.role"]["refused"] > 0

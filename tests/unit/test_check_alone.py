"""``sgguard check`` and ``sgguard schema`` where SGLang is not asked or not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sgguard.cli_policy import check, schema
from sgguard.schema import shipped

GOOD = "version: 1\npoints:\n  srt.cp_strategy: {action: normalise, aliases: {zz: zigzag}}\n"


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(check, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_good(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    code, out, err = run("--no-sglang", str(path))
    assert code == 0, err
    assert "zz -> 'zigzag'" in out
    assert "against the file alone; SGLang was not asked" in out
    code, out, _ = run("--no-sglang", "--json", str(path))
    data = json.loads(out)
    assert (code, data["ok"], data["sglang"]) == (0, True, None)
    (row,) = [row for row in data["points"] if row["point"] == "srt.cp_strategy"]
    assert row["action"] == "normalise"
    assert row["aliases"] == {"zz": "'zigzag'"}


def test_wrong_policy_is_1(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\npoint: {}\ndefaults: {action: fix}\n")
    code, out, err = run("--no-sglang", str(path))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"{path}:2:1: point: unknown key (did you mean 'points'?); known here: version, "
        "defaults, points, telemetry, reload",
        f"{path}:3:12: defaults.action: 'fix' is not one of observe or normalise",
    ]
    code, out, _ = run("--no-sglang", "--json", str(path))
    assert code == 1
    assert [p["line"] for p in json.loads(out)["problems"]] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.yaml",), "missing.yaml: cannot read the policy file"),
        (("missing.yaml", "--json"), "cannot read the policy file"),
        ((), "give a policy file"),
        (("--no-sglang", "--explain", "a=b"), "cannot be used with --no-sglang"),
        (("--bogus",), "No such option"),
    ],
)
def test_what_cannot_be_checked_is_2(arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert said in out + err


def test_without_sglang_it_says_so() -> None:
    """A finder that hides SGLang stands for a machine without it."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sglang", "diffusers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
import sgguard.compat.process as process
import sgguard.policy, sgguard.check, sgguard.cli_policy
from importlib import metadata
real = metadata.version
def version(name):
    if name == "sglang":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
sgguard.cli_policy.check(["inline:{version: 1}"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "SGLang is not installed. To check the file alone: sgguard check --no-sglang" in (
        done.stderr
    )


def test_schema_is_printed() -> None:
    done = CliRunner().invoke(schema)
    assert done.exit_code == 0
    assert done.stdout == shipped()

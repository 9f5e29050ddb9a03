"""``import sgguard.auto`` is light and silent, and no environment makes it fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "pydantic", "yaml", "sglang", "numpy", "click", "rich")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, without any of sgguard's variables but those given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGGUARD_", "OTEL_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, **environment},
    )


LOADED = f"""
import sys
before = set(sys.modules)
import sgguard.auto
found = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print("heavy:", *sorted(found & set({HEAVY!r})))
print("light:", *sorted(found & {{"sgguard", "wrapt", "opentelemetry"}}))
print("on:", sgguard.status().installed)
"""
LIGHT = ["heavy:", "light: opentelemetry sgguard wrapt", "on: True"]


def test_nothing_heavy_is_loaded() -> None:
    """Every process of a server pays for this import, also those that never meet a mode."""
    done = run(LOADED)
    assert done.stdout.splitlines() == LIGHT, done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_heavy_is_loaded_with_a_policy(tmp_path: Path) -> None:
    """It is read at once and parsed when the first guarded module is imported."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {action: normalise}\n")
    done = run(LOADED, SGGUARD_POLICY=str(policy))
    assert done.stdout.splitlines() == LIGHT, done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SGGUARD_POLICY": ""},
        {"SGGUARD_ACTION": "normalise"},
        {"SGGUARD_DISABLED": "1"},
        {"SGGUARD_POLICY": "inline:version: 1"},
    ],
)
def test_silence(environment: dict[str, str]) -> None:
    """Standard output belongs to the program; nothing is wrong, so nothing is said."""
    done = run("import sgguard.auto", **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def missing(path: Path) -> str:
    return "No such file or directory"


def a_directory(path: Path) -> str:
    path.mkdir()
    return "Is a directory"


def not_utf8(path: Path) -> str:
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    return "byte 0xe9 is not UTF-8"


def too_large(path: Path) -> str:
    path.write_bytes(b"#" * 1_000_000)
    return "the file is larger than 256 KiB"


def a_loop(path: Path) -> str:
    path.symlink_to(path)
    return "Too many levels of symbolic links"


def below_a_file(path: Path) -> str:
    path.parent.rmdir()
    path.parent.touch()
    return "Not a directory"


WRONG = (missing, a_directory, not_utf8, too_large, a_loop, below_a_file)


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["policy.yaml", "a\nERROR\x1b[31m forged"])
def test_a_policy_that_cannot_be_read(tmp_path: Path, make: object, name: str) -> None:
    """The program goes on; one error on standard error says which file and why."""
    path = tmp_path / "folder" / name
    path.parent.mkdir()
    why = make(path)  # type: ignore[operator]
    done = run("import sgguard.auto, sys; sys.exit(0)", SGGUARD_POLICY=str(path))
    assert (done.returncode, done.stdout) == (0, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("sgguard: the policy cannot be used; values are observed")
    shown = str(path).replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert second.startswith(f"{shown}:")
    assert why in second


def test_a_policy_without_the_right_to_read_it(tmp_path: Path) -> None:
    """Root may read everything: then the program gives its rights up before the import."""
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\n")
    path.chmod(0)
    done = run(
        """
import os, sys
import sgguard, sgguard.runtime  # root's Python may lie where nobody else can read
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    open(os.environ["SGGUARD_POLICY"])
except PermissionError:
    import sgguard.auto
    print("installed:", sgguard.status().installed)
""",
        SGGUARD_POLICY=str(path),
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this machine lets everyone read every file")
    assert done.stdout == "installed: True\n"
    assert f"{path}: cannot read the policy file: Permission denied" in done.stderr


@pytest.mark.parametrize("action", ["fallback", "fix", "\x1b[31m"])
def test_an_action_that_is_none(action: str) -> None:
    done = run("import sgguard.auto", SGGUARD_ACTION=action)
    assert (done.returncode, done.stdout) == (0, "")
    assert "SGGUARD_ACTION='" in done.stderr
    assert "is not one of observe, normalise" in done.stderr
    assert "\x1b" not in done.stderr


def test_an_installation_that_fails() -> None:
    """A bug of sgguard's own at this point is logged too; SGLang runs without the guard."""
    done = run(
        """
import sgguard.runtime, sys
def fail(self):
    raise RuntimeError("a bug")
sys.modules["sgguard.runtime"].Runtime.install_from_environment = fail
import sgguard.auto
print("went on")
"""
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "sgguard: could not be installed; SGLang is unguarded" in done.stderr
    assert "RuntimeError: a bug" in done.stderr


@pytest.mark.parametrize("missing", ["wrapt", "opentelemetry", "click"])
def test_a_missing_dependency_does_not_fail_the_import(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import sgguard.auto
print("going on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "going on\n"), done.stderr
    assert ("SGLang is unguarded" in done.stderr) is (missing != "click")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_that_nobody_writes_to_does_not_hang_the_start(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-c", "import sgguard.auto"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "SGGUARD_POLICY": str(pipe)},
    )
    assert "it is a named pipe" in done.stderr

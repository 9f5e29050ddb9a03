"""The catalogue's rows are what the wheels of SGLang's releases hold. Read, not imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sgguard.catalogue import POINTS, Target

pytestmark = pytest.mark.sglang

RELEASES = ("0.5.5", "0.5.7", "0.5.8", "0.5.9", "0.5.10", "0.5.12", "0.5.16", "0.5.20")


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def has(target: Target, release: str) -> bool:
    """Whether a row's words say that a release has it."""
    words = target.releases
    if words.endswith(" on"):
        return version(release) >= version(words.removesuffix(" on"))
    if " to " in words:
        first, last = words.split(" to ")
        return version(first) <= version(release) <= version(last)
    return release in words.split(", ")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for release in RELEASES:
        directory = tmp_path_factory.mktemp("wheel")
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
                "--platform=manylinux_2_34_x86_64", "-d", str(directory), f"sglang=={release}",
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )  # fmt: skip
        if done.returncode:
            # On a machine with no registry this is no fault of the catalogue; in CI it is one
            # of the run.
            assert not os.environ.get("CI"), done.stderr
            pytest.skip(f"the wheel of SGLang {release} cannot be downloaded here")
        (found[release],) = directory.glob("*.whl")
    return found


def defined(wheel: Path) -> Iterator[str]:
    """``module:Class.method`` of every from_string and set_mode in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not (name.startswith("sglang/") and name.endswith(".py")):
                continue
            text = archive.read(name).decode("utf-8")
            if "def from_string" not in text and "def set_mode" not in text:
                continue
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    for item in node.body:
                        if isinstance(item, ast.FunctionDef) and item.name in (
                            "from_string",
                            "set_mode",
                        ):
                            yield f"{module}:{node.name}.{item.name}"


@pytest.mark.parametrize("release", RELEASES)
def test_the_catalogue_has_exactly_what_the_release_has(
    wheels: dict[str, Path], release: str
) -> None:
    expected = {
        str(target)
        for point in POINTS
        for target in point.targets
        if target.implementation == "sglang" and has(target, release)
    }
    assert set(defined(wheels[release])) == expected


def test_retired_points_are_those_that_the_newest_release_lacks() -> None:
    newest = RELEASES[-1]
    for point in POINTS:
        assert point.retired is not any(has(target, newest) for target in point.targets)

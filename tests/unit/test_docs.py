"""What the documents say about points, policies and telemetry is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sgguard import policy
from sgguard.catalogue import POINTS
from sgguard.policy_file import parse_policy
from sgguard.repair import STEPS

ROOT = Path(__file__).resolve().parents[2]


def rows(text: str, heading: str) -> list[list[str]]:
    """The body rows of the first table under a heading."""
    lines = text.split(f"\n{heading}\n", 1)[1].splitlines()
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    return found[2:]


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    return {f"{prefix}{name}" for name in model.model_fields}


def test_the_policy_reference_has_every_key() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    documented = {row[0].strip("`") for row in rows(text, "## Every key")}
    expected = (
        {"version"}
        | keys(policy.Defaults, "defaults.")
        | keys(policy.PointPolicy, "points.KEY.")
        | keys(policy.TelemetryPolicy, "telemetry.")
        | keys(policy.Reload, "reload.")
    )
    assert documented == expected
    steps = [row[0].strip("`") for row in rows(text, "## Actions")]
    assert steps == ["observe", "normalise", "fallback"]
    assert [f"| `{step}` |" in text for step in STEPS] == [True] * len(STEPS)


def test_yaml_in_the_documents_is_valid() -> None:
    texts: list[Any] = []
    for path in (ROOT / "README.md", ROOT / "docs" / "policy.md"):
        texts += re.findall(r"```yaml\n(.*?)```", path.read_text(), re.S)
    assert texts
    for text in texts:
        parse_policy(text, "document")


def test_the_readme_lists_the_points_of_the_catalogue() -> None:
    text = (ROOT / "README.md").read_text()
    listed = [row[0].strip("`") for row in rows(text, "## Points")]
    assert listed == [point.id for point in POINTS]
    for row, point in zip(rows(text, "## Points"), POINTS, strict=True):
        for target in point.targets:
            assert f"{target.cls}.{target.method}" in row[1]
            assert target.releases in row[2]

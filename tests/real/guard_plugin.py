"""A pytest plugin for runs of SGLang's own tests: guard first, and write down what it did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sgguard.auto  # noqa: F401 - before any module of SGLang's


def pytest_sessionfinish(session: Any) -> None:
    import sgguard

    status = sgguard.status()
    Path(os.environ["SGGUARD_TEST_STATUS"]).write_text(
        json.dumps(
            {
                "active": [p.point for p in status.points if p.state == "active"],
                "lost": [p.point for p in status.points if p.state == "lost"],
                "calls": {p.point: dict(p.calls) for p in status.points if p.calls},
                "guard_errors": dict(status.guard_errors),
            }
        )
    )

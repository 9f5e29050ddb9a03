"""Errors of sgguard's own: the ones it raises, and the ones it must never let out.

The guard runs inside other people's servers. Whatever goes wrong in its own code is
counted, logged once per stage and swallowed, so that SGLang's call ends as it would have
ended without the guard. One small context manager does that everywhere.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal

from sgguard.compat.fork import renew_after_fork
from sgguard.values import cut, escape

logger = logging.getLogger("sgguard")

Stage = Literal["hook", "policy", "repair", "note", "transition", "telemetry", "status"]

STAGES: Final[tuple[Stage, ...]] = (
    "hook",
    "policy",
    "repair",
    "note",
    "transition",
    "telemetry",
    "status",
)
"""The closed set of places an internal error can come from (metric attribute)."""

#: Tests set this, so that an internal error fails the test instead of hiding.
reraise = False


class _Locks:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        self.lock = threading.Lock()


_locks = _Locks()
_counts: dict[Stage, int] = dict.fromkeys(STAGES, 0)


class SgguardError(Exception):
    """Base class of the errors that sgguard raises on purpose."""


class PolicyError(SgguardError, ValueError):
    """A policy cannot be used. The message says what is wrong, where, and what to do."""


#: Characters of one problem in an error's text.
LONGEST_LINE: Final = 2000


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a policy.

    Attributes:
        message: what is wrong and what to do.
        key: dotted path of the key, empty for the file as a whole.
        line: counted from 1; ``None`` where the policy did not come from a text.
        column: counted from 1.
    """

    message: str
    key: str = ""
    line: int | None = None
    column: int | None = None

    def render(self, source: str) -> str:
        """One line: ``source:line:column: key: message``."""
        place = source if self.line is None else f"{source}:{self.line}:{self.column}"
        key = f"{self.key}: " if self.key else ""
        return cut(escape(f"{place}: {key}{self.message}"[: 4 * LONGEST_LINE]), LONGEST_LINE)


class InvalidPolicyError(PolicyError):
    """A policy with problems; ``problems`` lists them all."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.render(source) for problem in problems))


class fail_open:  # noqa: N801 - reads as a statement: `with fail_open("telemetry"):`
    """Run a block whose failure must not reach SGLang.

    An ``Exception`` is counted under ``stage``, logged once per stage and swallowed.
    ``KeyboardInterrupt``, ``SystemExit`` and other ``BaseException`` pass through: they are
    not the guard's to stop.
    """

    __slots__ = ("stage",)

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        record(self.stage, error)
        return not reraise


def record(stage: Stage, error: BaseException) -> None:
    """Count an internal error and log the first one of each stage."""
    with _locks.lock:
        _counts[stage] += 1
        first = _counts[stage] == 1
    if not first:
        return
    with contextlib.suppress(Exception):  # a broken log handler is one more thing to survive
        logger.error(
            "sgguard: internal error (%s). SGLang goes on as without the guard, with less "
            "telemetry; further errors of this kind are only counted (sgguard.guard_errors).",
            stage,
            exc_info=error,
        )


def say(level: int, message: str, *args: object) -> None:
    """Log a line. A log handler that raises is not the caller's trouble."""
    with contextlib.suppress(Exception):
        logger.log(level, message, *args)


def counts() -> dict[Stage, int]:
    """How many internal errors each stage has had in this process."""
    with _locks.lock:
        return dict(_counts)

"""``sgguard check``: what a policy would do, verified against the SGLang that is installed."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgguard.catalogue import BY_ID, POINTS, UNSET, Point
from sgguard.compat.process import sglang_version
from sgguard.counts import Counts
from sgguard.decision import Recorder
from sgguard.errors import InvalidPolicyError, PolicyError
from sgguard.guard import Guard
from sgguard.hooks import Candidate, candidates_in
from sgguard.note import close_match
from sgguard.policy import Policy
from sgguard.policy_file import Source, against_sglang, closest
from sgguard.repair import STEPS, readings
from sgguard.rules import Book, Rule
from sgguard.values import show


class _Idle:
    """Stands in for the runtime behind a guard that is only asked questions."""

    book = Book()

    @property
    def recorder(self) -> Recorder:
        raise AssertionError("a guard that is only asked records nothing")

    def used(self) -> None:
        return None


@dataclass(frozen=True)
class Verified:
    """One point as the installed SGLang has it.

    Attributes:
        point: the row of the catalogue.
        guards: a guard for each implementation found, asked but not installed.
        why_not: why there is none, in words.
    """

    point: Point
    guards: tuple[Guard, ...]
    why_not: str = ""


def use_sglang_at(path: str) -> None:
    """Put an SGLang (an unpacked wheel, a checkout's ``python`` directory) first.

    Raises:
        PolicyError: if there is none at that path.
    """
    if not os.path.isfile(os.path.join(path, "sglang", "__init__.py")):
        raise PolicyError(f"{path}: there is no sglang/__init__.py there; give the directory above")
    sys.path.insert(0, os.path.abspath(path))


def verify(progress: Callable[[str], None] = lambda _: None) -> list[Verified]:
    """Import the modules of every point and find what can be guarded in them.

    Takes about ten seconds: SGLang's modules import torch and much else.
    """
    found = []
    for point in POINTS:
        progress(point.id)
        guards: dict[type, Guard] = {}
        failures = []
        for target in point.targets:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module = importlib.import_module(target.module)
            except ModuleNotFoundError as error:
                # A path of another release is simply not there.
                if not (error.name and target.module.startswith(error.name)):
                    failures.append(f"{target.module}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 - SGLang may fail in any way on this machine
                failures.append(f"{target.module}: {type(error).__name__}: {error}")
                continue
            for candidate in candidates_in(module):
                if candidate.point.id == point.id:
                    guards.setdefault(candidate.owner, _guard(candidate))
        why = ""
        if not guards:
            version = sglang_version()
            where = "SGLang is not installed" if version is None else f"not in SGLang {version}"
            why = "; ".join(failures) or where
        found.append(Verified(point, tuple(guards.values()), why))
    return found


def _guard(candidate: Candidate) -> Guard:
    return Guard(
        candidate.point,
        candidate.target.implementation,
        candidate.owner,
        candidate.raw,
        Counts(),
        _Idle(),
    )


def contradictions(source: Source, verified: list[Verified]) -> None:
    """Raise ``InvalidPolicyError`` with everything that SGLang contradicts."""
    wrong = [
        item
        for entry in verified
        for guard in entry.guards
        for item in against_sglang(source.policy, guard)
    ]
    if wrong:
        raise source.error(list(dict.fromkeys(wrong)))


def effect(policy: Policy, entry: Verified) -> list[dict[str, Any]]:
    """What a policy does at a point: one row for each entry that speaks of it."""
    accepted = [show(v) for guard in entry.guards[:1] for v in guard.accepted()]
    rows = []
    for rule in policy.rules(entry.point.id):
        conditions = []
        if rule.when.caller is not None:
            conditions.append(f"caller {rule.when.caller}")
        if rule.when.ranks is not None:
            conditions.append(f"rank {', '.join(map(str, sorted(rule.when.ranks)))}")
        rows.append(
            {
                "point": entry.point.id,
                "entry": rule.key,
                "when": " and ".join(conditions),
                "action": rule.action,
                "aliases": {a: show(v) for a, v in rule.aliases.items()},
                "fallback": None if rule.fallback is UNSET else show(rule.fallback),
                "steps_off": [step for step in STEPS if step not in rule.steps],
                "accepted": accepted,
                "verified": bool(entry.guards),
                "why_not": entry.why_not,
            }
        )
        if not conditions:
            break  # whatever comes after it never decides
    return rows


@dataclass(frozen=True)
class Step:
    """One line of an explanation: what was tried, and what SGLang said."""

    what: str
    value: str
    accepted: bool


def explain(policy: Policy, question: str, verified: list[Verified]) -> list[Step]:
    """What would happen to one value, step by step.

    Args:
        policy: the policy.
        question: ``point=value``, such as ``srt.cp_strategy=ZigZag``. The value is taken as
            a string, just as it stands after the ``=``.
        verified: the points, as ``verify`` gives them.

    Raises:
        PolicyError: if the question names no point, or one that cannot be asked here.
    """
    point_id, equals, value = question.partition("=")
    if not equals:
        raise PolicyError(f"--explain takes POINT=VALUE, not {show(question)}")
    if point_id not in BY_ID:
        raise PolicyError(
            f"--explain: unknown point {show(point_id)}{closest(point_id, BY_ID)}; "
            f"known: {', '.join(BY_ID)}"
        )
    entry = next(item for item in verified if item.point.id == point_id)
    if not entry.guards:
        raise PolicyError(f"--explain: {point_id} cannot be asked here: {entry.why_not}")
    return _explain(policy.rules(point_id)[0], entry.guards[0], value)


def _explain(rule: Rule, guard: Guard, value: str) -> list[Step]:
    def ask(what: str, candidate: object) -> bool:
        accepted = guard.accepts(candidate) is True
        found.append(Step(what, show(candidate), accepted))
        return accepted

    found: list[Step] = []
    if ask("as it came", value):
        return found
    if rule.action != "observe":
        for step, candidate in readings(
            value,
            steps=rule.steps,
            aliases=rule.aliases,
            accepted=guard.accepted,
            owner=guard.owner,
        ):
            if ask(f"step {step}", candidate):
                return found
        if rule.action == "fallback" and ask("fallback", rule.fallback):
            return found
    raised = f"refused under action {rule.action}: SGLang's exception reaches the caller"
    reading = guard.would_normalise(value)
    hint = close_match(value, guard.accepted())
    if reading is not UNSET and rule.action == "observe":
        near = f"; it reads as {show(reading)}, which action normalise would use"
    else:
        near = f"; the closest value is {show(hint)}, which is named and not used" if hint else ""
    found.append(Step(raised + near, show(value), False))
    return found


def problems_of(error: PolicyError) -> list[dict[str, Any]]:
    """An error as plain data, for ``--json``."""
    if not isinstance(error, InvalidPolicyError):
        return [{"message": str(error), "key": "", "line": None, "column": None}]
    return [
        {
            "message": problem.message,
            "key": problem.key,
            "line": problem.line,
            "column": problem.column,
        }
        for problem in error.problems
    ]

"""What ``sgguard.status()`` gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgguard.catalogue import BY_ID
from sgguard.hooks import State
from sgguard.rules import Action
from sgguard.values import escape


@dataclass(frozen=True)
class PointStatus:
    """One guarded place, or a point of the catalogue that is not guarded now.

    Attributes:
        point: the point's id.
        implementation: ``sglang`` or ``diffusers``.
        state: ``active``, ``lost``, ``waiting`` (module not imported) or ``absent`` (module
            imported, class not in it).
        target: ``module:Class.method``.
        action: what the policy allows there.
        calls: guarded calls there so far, by outcome.
        problem: why the policy is not in force there, if it is not.
    """

    point: str
    implementation: str
    state: State
    target: str
    action: Action
    calls: Mapping[str, int]
    problem: str = ""


@dataclass(frozen=True)
class Status:
    """What sgguard is doing in this process.

    Attributes:
        installed: whether guards are on.
        policy_fingerprint: of the policy in force; ``none`` without one.
        policy_source: the policy file, ``python``, or ``built-in``.
        points: the guarded places, then what is not guarded.
        guard_errors: internal errors by stage.
    """

    installed: bool
    policy_fingerprint: str
    policy_source: str
    points: tuple[PointStatus, ...]
    guard_errors: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for the policy, then one for each point that is or may still be guarded."""
        state = "installed" if self.installed else "not installed"
        lines = [
            f"sgguard {state}, policy {self.policy_fingerprint} from {escape(self.policy_source)}"
        ]
        shown = [
            point
            for point in self.points
            if point.state in ("active", "lost")
            or (point.state == "waiting" and not _retired(point.point))
        ]
        width = max((len(point.point) for point in shown), default=0)
        for point in shown:
            calls = ", ".join(f"{outcome} {count}" for outcome, count in point.calls.items())
            lines.append(
                f"  {point.point:{width}}  {point.state:7}  {point.action:9}  "
                f"{point.implementation}{': ' if calls else ''}{calls}"
            )
            lines += [f"    {escape(line)}" for line in point.problem.splitlines()]
        lines += [f"  guard errors, {stage}: {n}" for stage, n in self.guard_errors.items()]
        return "\n".join(lines)


def _retired(point_id: str) -> bool:
    point = BY_ID.get(point_id)
    return point is not None and point.retired

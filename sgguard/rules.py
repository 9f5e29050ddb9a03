"""What a policy comes down to when a call is guarded. Plain data, with no dependency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal

from sgguard.catalogue import UNSET
from sgguard.repair import STEPS, Step

Action = Literal["observe", "normalise", "fallback"]
Spans = Literal["transitions", "invalid", "none"]
LogLevel = Literal["debug", "info", "warning", "error", "none"]


@dataclass(frozen=True)
class When:
    """Conditions that are looked at when a value was refused.

    Attributes:
        caller: a glob for the module of the call site, or ``None``.
        ranks: the ranks it holds for, or ``None`` for any.
    """

    caller: str | None = None
    ranks: frozenset[int] | None = None

    def holds(self, caller: str | None, rank: Callable[[], int | None]) -> bool:
        """Whether all of them hold. An unknown caller or rank meets no condition."""
        if self.caller is not None and (caller is None or not fnmatchcase(caller, self.caller)):
            return False
        return self.ranks is None or rank() in self.ranks


@dataclass(frozen=True)
class Rule:
    """What the policy says about one point, ready to use.

    Attributes:
        action: ``observe``, ``normalise`` or ``fallback``.
        aliases: ``repair.canonical(alias)`` to the value it stands for.
        fallback: the value to use when nothing else helps; ``UNSET`` where there is none.
        steps: the normalise steps that are on.
        log: the level of its log lines; ``none`` for no line.
        spans: what gets a span.
        when: its conditions.
        key: the key of the policy it comes from.
    """

    action: Action = "observe"
    aliases: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    fallback: object = UNSET
    steps: tuple[Step, ...] = STEPS
    log: LogLevel = "warning"
    spans: Spans = "transitions"
    when: When = When()
    key: str = "defaults"


OBSERVE: Final = Rule()


class Book:
    """A whole policy in force. Replaced as one reference, never changed.

    Args:
        rules: gives a point's rules, most specific first; the last has no condition.
        max_value_length: how many characters of a received value are shown.
        fingerprint: equal exactly where the effective policy is; ``none`` without a policy.
        source: where the policy came from.
        rejected: point id to why the policy cannot work there; such points are observed.
    """

    def __init__(
        self,
        rules: Callable[[str], tuple[Rule, ...]] = lambda _: (OBSERVE,),
        max_value_length: int = 64,
        fingerprint: str = "none",
        source: str = "built-in",
        rejected: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._make = rules
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self.max_value_length = max_value_length
        self.fingerprint = fingerprint
        self.source = source
        self.rejected = rejected

    def rules(self, point_id: str) -> tuple[Rule, ...]:
        """The rules of a point, most specific first."""
        found = self._rules.get(point_id)
        if found is None:
            found = (OBSERVE,) if point_id in self.rejected else self._make(point_id)
            self._rules[point_id] = found
        return found

    def choose(self, point_id: str, caller: str | None, rank: Callable[[], int | None]) -> Rule:
        """The rule for one refused value: the first whose conditions hold."""
        for rule in self.rules(point_id):
            if rule.when.holds(caller, rank):
                return rule
        return OBSERVE

    def spans(self, point_id: str) -> Spans:
        """What gets a span at a point, as far as no condition is involved."""
        for rule in self.rules(point_id):
            if rule.when == When():
                return rule.spans
        return "transitions"

    def rejecting(self, more: Mapping[str, str]) -> Book:
        """This policy, with more points at which it cannot work."""
        return Book(
            self._make,
            self.max_value_length,
            self.fingerprint,
            self.source,
            {**self.rejected, **more},
        )

"""What a policy comes down to when a call is guarded. Plain data, with no dependency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from sgguard.catalogue import UNSET
from sgguard.repair import STEPS, Step

Action = Literal["observe", "normalise", "fallback"]
Spans = Literal["transitions", "invalid", "none"]


@dataclass(frozen=True)
class Rule:
    """What the policy says about one point, ready to use.

    Attributes:
        action: ``observe``, ``normalise`` or ``fallback``.
        aliases: ``repair.canonical(alias)`` to the value it stands for.
        fallback: the value to use when nothing else helps; ``UNSET`` where there is none.
        steps: the normalise steps that are on.
    """

    action: Action = "observe"
    aliases: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    fallback: object = UNSET
    steps: tuple[Step, ...] = STEPS


OBSERVE: Final = Rule()


@dataclass(frozen=True)
class TelemetryConfig:
    """The policy's ``telemetry`` block.

    Attributes:
        spans: ``transitions`` for a span per transition and per invalid value, ``invalid``
            for the latter alone, or ``none``. Metrics and log lines are always there.
        max_value_length: how many characters of a received value are shown.
    """

    spans: Spans = "transitions"
    max_value_length: int = 64

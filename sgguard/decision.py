"""What a guard finds out, in the form in which it leaves the guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sgguard.callsite import Frame
from sgguard.catalogue import Point
from sgguard.counts import Counts, Outcome
from sgguard.repair import Step
from sgguard.rules import Book, Rule


@dataclass(frozen=True)
class Decision:
    """How a value that SGLang refused ended.

    Attributes:
        point: the point it was refused at.
        implementation: whose class refused it, ``sglang`` or ``diffusers``.
        method: name of the guarded method.
        rule: what the policy allowed.
        book: the policy as a whole.
        outcome: ``normalised``, ``fell_back`` or ``refused``.
        received: the value as it came.
        applied: the value SGLang accepted instead; ``UNSET`` when refused.
        step: the normalise step that found it, if one did.
        error: SGLang's exception.
        frames: the callers, call site first.
    """

    point: Point
    implementation: str
    method: str
    rule: Rule
    book: Book
    outcome: Outcome
    received: object
    applied: object
    step: Step | None
    error: BaseException
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Transition:
    """The mode of one object changing.

    Attributes:
        point: the point whose method changed it.
        implementation: ``sglang`` or ``diffusers``.
        method: ``set_mode``, or a method that resets the mode (``clear``).
        before: the mode before; ``UNSET`` where it is not known.
        after: the mode now in force.
        seconds: how long ``before`` was on; ``None`` where its start was not seen.
        modes: the names that SGLang's own modes have in telemetry (a closed set).
        book: the policy in force.
        counts: the counts of the guard that saw it.
        frames: the caller.
    """

    point: Point
    implementation: str
    method: str
    before: object
    after: object
    seconds: float | None
    modes: frozenset[str]
    book: Book
    counts: Counts
    frames: tuple[Frame, ...]


class Recorder(Protocol):
    """Where decisions and transitions go. The guard knows no more of telemetry than this."""

    def invalid(self, decision: Decision, note: str = "") -> None: ...

    def transition(self, transition: Transition) -> None: ...


class Control(Protocol):
    """What all guards of a process share: one policy and one recorder at any time."""

    @property
    def book(self) -> Book: ...

    @property
    def recorder(self) -> Recorder: ...

    def used(self) -> None:
        """Called when a guard has something to decide (not for values SGLang accepts)."""

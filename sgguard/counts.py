"""What a guard keeps: how often what happened, and since when each object is in its mode."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import Any, Generic, Literal, TypeVar

from sgguard.catalogue import UNSET
from sgguard.compat.fork import renew_after_fork
from sgguard.rules import Action

K = TypeVar("K")

Outcome = Literal["accepted", "normalised", "fell_back", "refused", "expected"]


class Counter:
    """A count that threads may add to without a lock.

    ``itertools.count`` advances in one step of C code, so no addition is lost, and it costs
    a fraction of a locked one. Reading takes one step back out again, under a lock.
    """

    __slots__ = ("_lock", "_reads", "add")

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._reads = 0
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def value(self) -> int:
        with self._lock:
            count = self.add() - self._reads
            self._reads += 1
            return count


class Tally(Generic[K]):
    """Counts by key, under a lock: for what is rare beside an accepted call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[K, int] = {}

    def add(self, key: K) -> None:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1

    def counts(self) -> dict[K, int]:
        with self._lock:
            return dict(self._counts)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


class Counts:
    """What one implementation of a point has seen in this process."""

    def __init__(self) -> None:
        self.accepted = Counter()
        self.expected = Counter()
        self._invalid: Tally[tuple[Outcome, Action]] = Tally()
        self._transitions: Tally[tuple[str, str]] = Tally()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        for part in (self.accepted, self.expected, self._invalid, self._transitions):
            part.renew_lock()

    def add_transition(self, before: str, after: str) -> None:
        self._transitions.add((before, after))

    def transitions(self) -> dict[tuple[str, str], int]:
        """Transitions by the names of the mode before and after."""
        return self._transitions.counts()

    def add_invalid(self, outcome: Outcome, action: Action) -> None:
        self._invalid.add((outcome, action))

    def invalid(self) -> dict[tuple[Outcome, Action], int]:
        """Values that SGLang refused, by outcome and the action that was allowed."""
        return self._invalid.counts()

    def calls(self) -> dict[Outcome, int]:
        """Guarded calls by outcome."""
        found: dict[Outcome, int] = {"accepted": self.accepted.value()}
        for (outcome, _), count in self.invalid().items():
            found[outcome] = found.get(outcome, 0) + count
        found["expected"] = self.expected.value()
        return {outcome: count for outcome, count in found.items() if count}


class ModeClock:
    """Since when each object is in its mode, without keeping any object alive.

    Keyed by identity: a class of SGLang's may define ``__eq__``. The weak reference's
    callback drops the entry before the memory, and with it the id, can be used again.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], object, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def mode(self, instance: object) -> object:
        entry = self._entries.get(id(instance))
        return UNSET if entry is None else entry[1]

    def switch(self, instance: object, mode: object) -> float | None:
        """Note that ``mode`` begins now; give the seconds the one before it was on."""
        now = time.monotonic()
        key = id(instance)
        previous = self._entries.get(key)
        if previous is None:
            entries = self._entries

            def drop(_: object) -> None:
                entries.pop(key, None)

            try:
                reference = weakref.ref(instance, drop)
            except TypeError:  # __slots__ without __weakref__: its modes cannot be timed
                return None
        else:
            reference = previous[0]
        self._entries[key] = (reference, mode, now)
        return None if previous is None else max(now - previous[2], 0.0)

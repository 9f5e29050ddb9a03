"""One call through a guard: try, decide, retry.

SGLang is always called first, with the value as it came. Only its refusal leads anywhere
else, so a valid call costs little, and the guard can never be stricter than SGLang.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import CodeType, TracebackType
from typing import Any, Final

from sgguard import accepted as accepted_
from sgguard import errors
from sgguard import note as note_
from sgguard.callsite import callers, is_plumbing
from sgguard.catalogue import UNSET, Point
from sgguard.compat.process import rank
from sgguard.counts import Counts, ModeClock, Outcome
from sgguard.decision import Control, Decision, Transition
from sgguard.discovery import class_dict
from sgguard.errors import fail_open
from sgguard.repair import STEPS, Step, readings
from sgguard.rules import Rule
from sgguard.values import plain

REFUSALS: Final = (ValueError, AttributeError, TypeError, KeyError)
"""What SGLang's guarded functions raise for a value they do not take."""

UNKNOWN_MODE: Final = "unknown"
"""The name of a mode that was in force before the guard saw its object."""

#: How many frames of an invalid value's callers are kept.
STACK_DEPTH: Final = 6


class _Busy(threading.local):
    """Not zero while the guard runs its own code, which may run the value's (``repr``, ``==``).

    A guarded call made from there passes straight through, so that a value whose ``repr``
    switches a mode cannot recurse.
    """

    active = 0

    def __enter__(self) -> None:
        self.active += 1

    def __exit__(self, *_: object) -> None:
        self.active -= 1


_busy = _Busy()

_UNREPAIRED: Final = object()


class Guard:
    """The guard of one method of one class.

    ``call``, ``call_mode`` and ``call_reset`` have the signature of a wrapt wrapper:
    ``(wrapped, instance, args, kwargs)``, where ``wrapped`` is bound.

    Args:
        point: the row of the catalogue, or a discovered one.
        implementation: whose class it is.
        owner: the class that defines the method.
        raw: the class attribute below the guard.
        counts: this implementation's counts.
        control: the policy in force, and where decisions and transitions go.
    """

    def __init__(
        self,
        point: Point,
        implementation: str,
        owner: type,
        raw: object,
        counts: Counts,
        control: Control,
    ) -> None:
        self.point = point
        self.implementation = implementation
        self.owner = owner
        self.raw = raw
        self.counts = counts
        self.control = control
        self.clock = ModeClock()
        #: A guard that cannot be taken off (something wraps it) passes calls straight on.
        self.off = False
        self.function = accepted_.function_of(raw)
        self._codes = accepted_.codes_of(raw, owner)
        self.method = point.targets[0].method
        self._count = counts.accepted.add
        self._read_mode = point.read_mode or (lambda _: UNSET)
        self._parameter = self._value_parameter()

    # The three wrappers. Nothing but SGLang's call and a few attribute reads happens in them
    # while SGLang accepts the value and the mode stays the same.

    def call(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Guard a pure function of a value (``from_string``)."""
        if self.off:
            return wrapped(*args, **kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except REFUSALS as error:
            try:
                result = self._refused(wrapped, args, kwargs, error)
            except RecursionError:  # too little stack left to find out anything
                result = _UNREPAIRED
            if result is _UNREPAIRED:
                raise
            return result[0]
        self._count()
        return result

    def call_mode(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Guard a method that switches an object's mode (``set_mode``)."""
        if self.off:
            return wrapped(*args, **kwargs)
        before = self._read_mode(instance)
        applied = UNSET
        try:
            result = wrapped(*args, **kwargs)
        except REFUSALS as error:
            try:
                repaired = self._refused(wrapped, args, kwargs, error)
            except RecursionError:
                repaired = _UNREPAIRED
            if repaired is _UNREPAIRED:
                raise
            result, applied = repaired
        else:
            self._count()
        try:
            after = self._read_mode(instance)
            if after is not before or after is UNSET:
                self._changed(instance, before, after, args, kwargs, applied)
        except RecursionError:  # SGLang has done its part with the stack there was
            if errors.reraise:
                raise
        return result

    def call_reset(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Watch a method that resets the mode and takes no value (``clear``)."""
        if self.off:
            return wrapped(*args, **kwargs)
        before = self._read_mode(instance)
        result = wrapped(*args, **kwargs)
        try:
            after = self._read_mode(instance)
            if after is not before:
                self._transition(instance, before, after, wrapped.__name__)
        except RecursionError:
            if errors.reraise:
                raise
        return result

    # What follows runs only when something is to be said.

    def succeed(self, lost: Guard) -> None:
        """Take the place of a guard that was lost, and keep what it knew of SGLang's function.

        A hook need not say which function it calls, and then there is nothing to read it from.
        """
        function = self.function
        if lost.function is not None and not (
            function is not None and self._is_own(function.__code__, function.__module__)
        ):
            self.function, self._parameter = lost.function, lost._parameter

    def _value_parameter(self) -> str | None:
        """The name of the parameter that takes the value: the one after ``self``/``cls``."""
        if self.function is None:
            return None
        code = self.function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        position = 0 if isinstance(self.raw, staticmethod) else 1
        return names[position] if len(names) > position else None

    def _value(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if args:
            return args[0]
        return kwargs.get(self._parameter, UNSET) if self._parameter else UNSET

    def _changed(
        self,
        instance: object,
        before: object,
        after: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        applied: object,
    ) -> None:
        with fail_open("transition"):
            if after is UNSET:  # not readable from the object: go by what was accepted
                if instance is None:  # Class.method(self=object, ...)
                    instance = kwargs.get("self")
                before = self.clock.mode(instance)
                after = applied if applied is not UNSET else self._value(args, kwargs)
        self._transition(instance, before, after, self.method)

    def _transition(self, instance: object, before: object, after: object, method: str) -> None:
        if _busy.active:
            return
        with fail_open("transition"), _busy:
            if type(before) is type(after) and bool(before == after):
                return
            if isinstance(before, str) and isinstance(after, str) and bool(before == after):
                return  # "read" and an enum member equal to it
            self.control.recorder.transition(
                Transition(
                    self.point,
                    self.implementation,
                    method,
                    before,
                    after,
                    self.clock.switch(instance, after),
                    self.modes,
                    self.control.book,
                    self.counts,
                    callers(1),
                )
            )

    def _is_own(self, code: CodeType, module: object) -> bool:
        """Whether code is SGLang's method by its name: a hook may hide which function it calls."""
        own = class_dict(self.owner)
        name = f"{own.get('__qualname__', self.owner.__qualname__)}.{self.method}"
        return module == own.get("__module__") and (
            getattr(code, "co_qualname", name) == name and code.co_name == self.method
        )

    def _is_refusal(self, traceback: TracebackType | None) -> bool:
        """Whether the guarded function itself raised, not deeper code for another reason.

        The first frame is the guard's own. No frame below it means that the call did not
        bind: the wrong number of arguments is SGLang's TypeError and none of our business.
        """
        frames = []
        current = traceback.tb_next if traceback is not None else None
        while current is not None:
            frames.append(current.tb_frame)
            current = current.tb_next
        # `cls(value)` inside from_string ends in the enum module: still the same refusal.
        while frames and frames[-1].f_globals.get("__name__") == "enum":
            frames.pop()
        if not frames:
            return False
        deepest = frames[-1].f_code
        if deepest in self._codes or self._is_own(deepest, frames[-1].f_globals.get("__name__")):
            return True
        first = next((f for f in frames if not is_plumbing(f.f_globals.get("__name__"))), None)
        return first is not None and deepest is first.f_code

    def _refused(
        self,
        wrapped: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: BaseException,
    ) -> Any:
        """Decide what becomes of a refused value.

        Returns:
            ``(result, applied)`` where a repair succeeded, else ``_UNREPAIRED``: the caller
            then re-raises the very exception it caught.
        """
        repaired: Any = _UNREPAIRED
        with fail_open("repair"):
            if _busy.active or not self._is_refusal(error.__traceback__):
                return _UNREPAIRED
            value = self._value(args, kwargs)
            if value is UNSET:
                return _UNREPAIRED
            with fail_open("policy"):
                self.control.used()
            book = self.control.book  # one reference: the whole call sees one policy
            frames = callers(STACK_DEPTH)
            caller = frames[0].module if frames else None
            rule = book.choose(self.point.id, caller, rank)
            expected = caller in self.point.expects_refusal
            if expected and rule.action == "fallback":
                rule = replace(rule, action="normalise")
            outcome: Outcome = "refused"
            step: Step | None = None
            with fail_open("repair"):
                if rule.action != "observe":
                    outcome, step, repaired = self._repair(wrapped, args, kwargs, value, rule)
            if expected and outcome == "refused":
                self.counts.expected.add()
                return repaired
            self.counts.add_invalid(outcome, rule.action)
            with _busy:
                self._report(
                    Decision(
                        self.point,
                        self.implementation,
                        self.method,
                        rule,
                        book,
                        outcome,
                        value,
                        UNSET if repaired is _UNREPAIRED else repaired[1],
                        step,
                        error,
                        frames,
                    )
                )
        return repaired

    def _repair(
        self,
        wrapped: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        value: object,
        rule: Rule,
    ) -> tuple[Outcome, Step | None, Any]:
        """Try the readings of a value, then the fallback; the first that SGLang accepts."""

        def attempt(candidate: object) -> Any:
            if args:
                call_args, call_kwargs = (candidate, *args[1:]), kwargs
            else:
                call_args, call_kwargs = args, {**kwargs, str(self._parameter): candidate}
            try:
                return wrapped(*call_args, **call_kwargs), candidate
            except REFUSALS:
                return _UNREPAIRED

        # A member of the guarded enum may only ever come back as itself.
        member = issubclass(type(value), Enum) and isinstance(value, self.owner)
        for step, candidate in self._readings(value, rule.steps, rule.aliases):
            repaired = attempt(candidate)
            if repaired is not _UNREPAIRED and not (
                member and step != "aliases" and repaired[0] is not value
            ):
                return "normalised", step, repaired
        if rule.action == "fallback":
            repaired = attempt(rule.fallback)
            if repaired is not _UNREPAIRED:
                return "fell_back", None, repaired
        return "refused", None, _UNREPAIRED

    def _report(self, decision: Decision) -> None:
        note = ""
        if decision.outcome == "refused":
            with fail_open("note"):
                hint = self.would_normalise(decision.received)
                note = note_.add(decision, self.accepted(), hint)
        self.control.recorder.invalid(decision, note)

    def _readings(
        self, value: object, steps: Sequence[Step], aliases: Mapping[str, object]
    ) -> Iterator[tuple[Step, object]]:
        found = readings(
            value, steps=steps, aliases=aliases, accepted=self.accepted, owner=self.owner
        )
        while True:
            with _busy:  # making a reading may run the value's own code; trying it must not
                reading = next(found, None)
            if reading is None:
                return
            yield reading

    # What SGLang accepts. Asked of SGLang, below the guard, where that has no effect.

    def asker(self) -> Callable[[object], bool] | None:
        """A function that asks SGLang whether it accepts a value, or ``None``.

        ``from_string`` of the catalogue is pure; ``set_mode`` is asked on a throw-away
        object. A discovered function is never called on the guard's own account.
        """
        point = self.point
        if point.kind == "mode":
            if point.make_probe is None:
                return None
            target: object = point.make_probe(self.owner)
        elif point.pure:
            target = None
        else:
            return None
        # Below whatever else wraps it: a hook or a mock is not to be called with values that
        # nobody sent.
        function = self.function
        if function is None or not self._is_own(function.__code__, function.__module__):
            return None
        first = self.owner if target is None else target

        def accepts(value: object) -> bool:
            try:
                function(first, value)
            except Exception:  # noqa: BLE001 - whatever it raises, it did not accept
                return False
            return True

        return accepts

    def _ask_by_calling(self) -> Callable[[object], bool]:
        # What somebody put there may be no descriptor: Cls.from_string = Cls.from_string.
        get = getattr(type(self.raw), "__get__", None)
        bound: Any = self.raw if get is None else get(self.raw, None, self.owner)

        def accepts(value: object) -> bool:
            try:
                bound(value)
            except Exception:  # noqa: BLE001 - whatever it raises, it did not accept
                return False
            return True

        return accepts

    def accepted(self) -> tuple[object, ...]:
        """The values SGLang accepts here, as far as they can be read."""
        return accepted_.accepted_values(self.owner, self.function, self.point.kind, self.asker())

    @functools.cached_property
    def modes(self) -> frozenset[str]:
        """The names SGLang's modes have in telemetry, read from SGLang once."""
        names = {plain(value) for value in self.accepted()}
        return frozenset({"none", UNKNOWN_MODE, *(name for name in names if name is not None)})

    def accepts(self, value: object) -> bool | None:
        """Whether SGLang accepts a value that the policy names.

        ``None`` where it cannot be asked and does not stand among the values read from it
        (``set_mode`` of a discovered class). A discovered ``from_string`` is called: whoever
        names the point in a policy wants it called with that value.
        """
        asker = self.asker()
        if asker is None and self.point.kind == "enum" and not self.point.pure:
            asker = self._ask_by_calling()
        if asker is not None:
            return asker(value)
        # Something that cannot be looked into (a mock) contradicts nothing.
        return True if self.function is None or value in self.accepted() else None

    def would_normalise(self, value: object) -> object:
        """What normalising with no aliases would use; ``UNSET`` if nothing."""
        asker = self.asker()
        if asker is None:
            known = self.accepted()
            asker = known.__contains__
        for _, candidate in self._readings(value, STEPS, {}):
            if asker(candidate):
                return candidate
        return UNSET

"""Putting guards on SGLang's classes as they are imported, and taking them off again.

The modules of the catalogue are watched with wrapt's post-import hooks. Those take exact
names and fire once, so a finder of our own watches for the rest: discovery in every other
module under ``sglang.``, and reloads. Nothing here imports a module of SGLang's, and nothing
here raises into an import.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Literal

import wrapt

from sgguard.accepted import unwrap
from sgguard.catalogue import POINTS, Point, Target, targets_by_module
from sgguard.discovery import PREFIX, class_dict, class_mro, discover
from sgguard.errors import fail_open, say
from sgguard.finder import Finder
from sgguard.guard import Guard

State = Literal["active", "lost", "waiting", "absent"]
STATES: Final[tuple[State, ...]] = ("active", "lost", "waiting", "absent")
"""active: guarded. lost: was guarded, something replaced it. waiting: its module is not
imported. absent: its module is imported and has no such class."""


class BoundGuardWrapper(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """A guarded method looked up on a class or an object.

    wrapt's proxies refuse to be pickled or copied; SGLang's bound methods can be, so these
    do as the method below them does.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        wrapped: Any = self.__wrapped__
        if getattr(wrapped, "__self__", None) is not None:
            return wrapped.__reduce_ex__(protocol)
        # A plain function looked up on its class is pickled by name, as an attribute of it.
        *path, name = wrapped.__qualname__.split(".")
        owner = functools.reduce(getattr, path, sys.modules[wrapped.__module__])
        return getattr, (owner, name)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        return self if owner is None else getattr(copy.deepcopy(owner, memo), self.__name__)


class GuardWrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """The class attribute that replaces a guarded method."""

    __bound_function_wrapper__ = BoundGuardWrapper


@dataclass(frozen=True)
class Candidate:
    """A class attribute that can be guarded."""

    point: Point
    target: Target
    owner: type
    attribute: str
    raw: Any


@dataclass
class Place:
    """A guarded class.

    Attributes:
        candidate: what is guarded.
        guard: the guard.
        wrappers: class attribute name to (wrapper, what was there before).
        warned: its loss has been logged.
        superseded: another class stands for its target now, after a reload or a REPLACE
            hook. It stays guarded, since it may be in use where it was imported from.
    """

    candidate: Candidate
    guard: Guard
    wrappers: dict[str, tuple[GuardWrapper, Any]] = field(default_factory=dict)
    warned: bool = False
    superseded: bool = False

    def wraps(self, attribute: str) -> bool:
        """Whether this place's wrapper is still in the chain of a class attribute."""
        wrapper = self.wrappers[attribute][0]
        for layer in unwrap(class_dict(self.candidate.owner).get(attribute)):
            # Somebody who wrapped what `Class.method` gave has our bound wrapper below.
            if layer is wrapper or (
                type(layer) is BoundGuardWrapper and layer._self_parent is wrapper
            ):
                return True
        return False

    def module_has_it(self) -> bool:
        """Whether the module still has this very class under its name."""
        module = sys.modules.get(self.candidate.target.module)
        if module is None:
            return True  # taken out of sys.modules; the class lives on where it is used
        current: Any = module.__dict__.get(self.candidate.target.cls)
        owner = self.candidate.owner
        return current is owner or (
            issubclass(type(current), type) and any(base is owner for base in class_mro(current))
        )

    def is_on(self) -> bool:
        """Whether a call of the guarded method still goes through the guard."""
        return all(self.wraps(name) for name in self.wrappers) and self.module_has_it()


def _owner(cls: type, attribute: str) -> type | None:
    """The class that defines an attribute: a guard on it serves every subclass, once."""
    package = str(class_dict(cls).get("__module__", "")).partition(".")[0]
    for base in class_mro(cls):
        own = class_dict(base)
        if attribute in own:
            same = str(own.get("__module__", "")).partition(".")[0] == package
            return base if same else None
    return None


def _candidate(point: Point, target: Target, cls: object) -> Candidate | None:
    if not issubclass(type(cls), type):
        return None
    owner = _owner(cls, target.method)  # type: ignore[arg-type]
    if owner is None:
        return None
    return Candidate(point, target, owner, target.method, class_dict(owner)[target.method])


_BY_MODULE: Final = targets_by_module()


def candidates_in(module: ModuleType) -> Iterator[Candidate]:
    """What can be guarded in a module: rows of the catalogue first, then discoveries."""
    owners: set[tuple[int, str]] = set()
    for point, target in _BY_MODULE.get(module.__dict__.get("__name__", ""), ()):
        found = _candidate(point, target, module.__dict__.get(target.cls))
        if found is not None:
            owners.add((id(found.owner), found.attribute))
            yield found
    for point, target, cls in discover(module):
        found = _candidate(point, target, cls)
        if found is not None and (id(found.owner), found.attribute) not in owners:
            owners.add((id(found.owner), found.attribute))
            yield found


def loaded_modules() -> list[ModuleType]:
    """The watched modules that are imported by now, in part or whole."""
    return [
        module
        for name, module in list(sys.modules.items())
        if (name.startswith(PREFIX) or name in _BY_MODULE) and type(module) is ModuleType
    ]


def _importing(module: ModuleType) -> bool:
    spec = module.__dict__.get("__spec__")
    return bool(getattr(spec, "_initializing", False))


class Hooks:
    """The guards of this process.

    Args:
        make_guard: makes the guard for a candidate; called as its module is imported.
        lock: held while places change.
    """

    def __init__(
        self, make_guard: Callable[[Candidate], Guard], lock: threading.RLock | None = None
    ) -> None:
        self._make_guard = make_guard
        self.lock = lock or threading.RLock()
        self._places: list[Place] = []
        self._unfinished: dict[str, ModuleType] = {}
        self._registered: set[str] = set()
        self._finder = Finder(PREFIX, _BY_MODULE, self.loaded)
        self.active = False

    # Installing and uninstalling.

    def activate(self, ready: Sequence[tuple[Candidate, Guard]] = ()) -> None:
        """Watch imports, and guard what is imported already.

        Args:
            ready: guards made before for candidates found in loaded modules.
        """
        with self.lock:
            self.active = True
            for place in self._places:
                place.guard.off = False
            for candidate, guard in ready:
                with fail_open("hook"):  # one class that cannot be guarded leaves the rest
                    self._guard(candidate, guard)
            if not any(finder is self._finder for finder in sys.meta_path):
                sys.meta_path.insert(0, self._finder)
            for name in _BY_MODULE:
                if name not in self._registered:
                    self._registered.add(name)
                    wrapt.register_post_import_hook(self.loaded, name)
        for module in loaded_modules():
            self.loaded(module)

    def deactivate(self) -> None:
        """Take every guard off. What cannot be taken off passes calls straight on."""
        with self.lock:
            self.active = False
            # By identity: another finder's == is none of our business.
            sys.meta_path[:] = [f for f in sys.meta_path if f is not self._finder]
            self._unfinished.clear()
            self._places = [place for place in self._places if not self._take_off(place)]

    def _take_off(self, place: Place) -> bool:
        """Whether nothing of a place is left on its class."""
        place.guard.off = True
        left = False
        for attribute, (wrapper, raw) in place.wrappers.items():
            if class_dict(place.candidate.owner).get(attribute) is wrapper:
                setattr(place.candidate.owner, attribute, raw)
            elif place.wraps(attribute):
                left = True  # somebody wrapped the guard, and that is not ours to undo
        return not left

    # As modules are imported.

    def loaded(self, module: ModuleType) -> None:
        """Guard what a module defines. Never raises: it runs inside the user's import."""
        with fail_open("hook"):
            if not self.active:
                return
            with self.lock:
                self._unfinished[module.__name__] = module
                # A module that is being imported (by another thread, or by whoever imported
                # sgguard) may not have its classes yet: it is looked at again with the next.
                for name, waiting in list(self._unfinished.items()):
                    self._scan(waiting)
                    if not _importing(waiting):
                        del self._unfinished[name]
            self.check()

    def _scan(self, module: ModuleType) -> None:
        for candidate in candidates_in(module):
            with fail_open("hook"):
                self._guard(candidate, None)

    def find(self) -> list[Candidate]:
        """What the loaded modules have that is not guarded now."""
        with self.lock:
            return [
                candidate
                for module in loaded_modules()
                for candidate in candidates_in(module)
                if self._on(candidate) is None
            ]

    def _on(self, candidate: Candidate) -> Place | None:
        for place in self._places:
            if (
                place.candidate.owner is candidate.owner
                and place.candidate.attribute == candidate.attribute
                and all(place.wraps(name) for name in place.wrappers)
            ):
                return place
        return None

    def _guard(self, candidate: Candidate, guard: Guard | None) -> None:
        if self._on(candidate) is not None:
            return
        lost = [
            place
            for place in self._places
            if place.candidate.owner is candidate.owner
            and place.candidate.attribute == candidate.attribute
        ]
        for place in lost:
            self._take_off(place)  # what is left of it, so that nothing is guarded twice
        # Whatever is there now is guarded, and comes back when the guard is taken off.
        raw = _stripped(candidate.owner, candidate.attribute)
        if guard is None or guard.raw is not raw:
            guard = self._make_guard(
                Candidate(
                    candidate.point, candidate.target, candidate.owner, candidate.attribute, raw
                )
            )
        for place in lost:
            guard.succeed(place.guard)
        place = Place(candidate, guard)
        entry = guard.call if candidate.point.kind == "enum" else guard.call_mode
        self._wrap(place, candidate.attribute, entry)
        for attribute in candidate.point.resets:
            if attribute in class_dict(candidate.owner):
                self._wrap(place, attribute, guard.call_reset)
        for other in list(self._places):
            if other.candidate.owner is candidate.owner:
                if other.candidate.attribute == candidate.attribute:
                    self._places.remove(other)  # lost, and taken off above
            elif other.candidate.target == candidate.target and not other.module_has_it():
                other.superseded = True
        self._places.append(place)

    def _wrap(self, place: Place, attribute: str, entry: Callable[..., Any]) -> None:
        owner = place.candidate.owner
        raw = _stripped(owner, attribute)
        wrapper = GuardWrapper(raw, entry)
        setattr(owner, attribute, wrapper)
        place.wrappers[attribute] = (wrapper, raw)

    # Is it still on?

    def check(self) -> None:
        """Log every guard that something took off since the last look, once."""
        if not self.active:
            return
        with self.lock:
            lost = [p for p in self._places if not (p.warned or p.superseded or p.is_on())]
            for place in lost:
                place.warned = True
        for place in lost:
            say(
                logging.WARNING,
                "sgguard: the guard of %s at %s was lost: something replaced it. "
                "sgguard.install() puts it back.",
                place.candidate.point.id,
                place.candidate.target,
            )

    def places(self) -> list[tuple[Place, State]]:
        """The guarded places and whether each is still on."""
        with self.lock:
            for module in list(self._unfinished.values()):
                self._scan(module)
            found: list[tuple[Place, State]] = [
                (place, "active" if place.is_on() else "lost")
                for place in self._places
                if self.active and not place.superseded
            ]
        self.check()
        return found

    def guards(self) -> list[Guard]:
        """Every guard made, on or lost."""
        with self.lock:
            return [place.guard for place in self._places]


def _stripped(owner: type, attribute: str) -> Any:
    """A class attribute, with guards of ours taken off that were forgotten there.

    Somebody who patches a guarded method and undoes that after ``uninstall()`` puts a guard
    back that nobody knows of any more.
    """
    raw = class_dict(owner)[attribute]
    bare = raw
    while type(bare) is GuardWrapper:
        bare = bare.__wrapped__
    if bare is not raw:
        setattr(owner, attribute, bare)
    return bare


def unguarded(places: Iterable[Place], active: bool) -> Iterator[tuple[Point, str, State, Target]]:
    """The catalogue's implementations that no place stands for, each with its state."""
    taken = {(p.candidate.point.id, p.candidate.target.implementation) for p in places}
    for point in POINTS:
        for implementation in dict.fromkeys(t.implementation for t in point.targets):
            if (point.id, implementation) in taken:
                continue
            targets = [t for t in point.targets if t.implementation == implementation]
            imported = [t for t in targets if t.module in sys.modules]
            state: State = "absent" if imported and active else "waiting"
            yield point, implementation, state, (imported or targets)[-1]

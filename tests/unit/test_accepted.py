"""The accepted values are read off SGLang's code, in every style it has been written in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar

import pytest
import wrapt

from sgguard.accepted import accepted_values, candidates, codes_of, function_of, unwrap

# The styles. Each is a way in which a release of SGLang has written from_string or set_mode.


class ByValue(str, Enum):
    """Backend: the value in lower case."""

    AUTO = "auto"
    DIFFUSERS = "diffusers"

    @classmethod
    def from_string(cls, value: str) -> ByValue:
        try:
            return cls(value.lower())
        except ValueError:
            raise ValueError(f"Invalid backend: {value}") from None


class ByName(Enum):
    """SpeculativeAlgorithm: the name in upper case; None is a value; one name is an alias."""

    EAGLE = auto()
    NGRAM = auto()
    NONE = auto()
    NEXTN = EAGLE

    @classmethod
    def from_string(cls, name: str | None) -> ByName:
        if name is None:
            return cls.NONE
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"Unknown speculative algorithm name: {name}") from None


class ByChain(IntEnum):
    """CPAttentionBackendKind: tests one after another, by case."""

    FLASH_ATTENTION = 0
    DSA = 1

    @classmethod
    def from_string(cls, value: str) -> ByChain:
        if value in ("fa3", "fa4"):
            return cls.FLASH_ATTENTION
        if value == "dsa":
            return cls.DSA
        raise ValueError(f"Unsupported {value!r}; expected one of {{'fa3', 'fa4', 'dsa'}}")


ALIASES = {"denoising": "denoiser", 3: "no string"}


class ByAlias(str, Enum):
    """RoleType: a table of aliases among the globals."""

    DENOISER = "denoiser"

    @classmethod
    def from_string(cls, value: str) -> ByAlias:
        return cls(ALIASES.get(value.lower(), value.lower()))


RESERVED = frozenset({"nextn"})
REGISTRY = MappingProxyType({"mine": 1})


def _registered(name: str) -> int | None:
    return REGISTRY.get(name)


class BySet(Enum):
    """A set of aliases among the globals, and a table that a helper looks into."""

    EAGLE = 1

    @classmethod
    def from_string(cls, name: str) -> BySet:
        if name in RESERVED or _registered(name):
            return cls.EAGLE
        return cls[name]


class Registry:
    """SpeculativeAlgorithm before it was an Enum: a dict on the class."""

    _registry: ClassVar[dict[str, int]] = {"EAGLE": 1, "NGRAM": 2}

    @classmethod
    def from_string(cls, name: str) -> int:
        found = cls._registry.get(name.upper())
        if found is None:
            raise ValueError(name)
        return found


STYLES: list[tuple[Any, tuple[object, ...]]] = [
    (ByValue, ("auto", "diffusers")),
    (ByName, ("EAGLE", "NGRAM", "NONE", "NEXTN", None)),
    (ByChain, ("fa3", "fa4", "dsa")),
    (ByAlias, ("denoiser", "denoising")),
    (BySet, ("EAGLE", "nextn", "mine")),
    (Registry, ("EAGLE", "NGRAM")),
]


def asks(raw: Any, owner: type) -> Callable[[object], bool]:
    get = getattr(type(raw), "__get__", None)  # a bound method is no descriptor
    bound = raw if get is None else get(raw, None, owner)

    def accepts(value: object) -> bool:
        try:
            bound(value)
        except Exception:
            return False
        return True

    return accepts


def of(owner: type, raw: Any) -> tuple[object, ...]:
    return accepted_values(owner, function_of(raw), "enum", asks(raw, owner))


@pytest.mark.parametrize(("owner", "expected"), STYLES, ids=[s[0].__name__ for s in STYLES])
def test_every_style(owner: type, expected: tuple[object, ...]) -> None:
    """All that is accepted, once for each spelling but case, and nothing that is not."""
    assert of(owner, vars(owner)["from_string"]) == expected


def test_where_nothing_may_be_asked_candidates_are_given() -> None:
    raw = vars(ByChain)["from_string"]
    found = accepted_values(ByChain, function_of(raw), "enum", None)
    assert found == ("FLASH_ATTENTION", "DSA", "fa3", "fa4")


def test_a_docstring_is_no_value() -> None:
    def set_mode(self: object, mode: str) -> None:
        """Switches"""
        if mode != "write":
            raise ValueError(mode)

    assert candidates(object, set_mode, "mode") == ["write"]


def test_without_a_function_the_members_are_left() -> None:
    """A method written in C has no constants to read."""
    assert candidates(ByValue, None, "enum") == ["auto", "diffusers", "AUTO", "DIFFUSERS"]
    assert candidates(ByValue, None, "mode") == []


# set_mode: read, not asked.


class Membership:
    def set_mode(self, mode: str | None) -> None:
        if mode not in (None, "write", "read", "skip"):
            raise ValueError(f"invalid mode {mode}")


class ListMembership:
    def set_mode(self, mode: str) -> None:
        if mode in ["write", "read"]:
            self.mode = mode
            return
        raise ValueError(mode)


class SetMembership:
    def set_mode(self, mode: str) -> None:
        if mode not in {"write", "read"}:
            raise ValueError(mode)


class Chain:
    def set_mode(self, mode: str) -> None:
        if mode == "write" or mode == "read":  # noqa: PLR1714 - a chain is the point
            self.mode = mode
        else:
            raise ValueError("mode must be one of these, and that is no word")


MODES = ("write", "read")


class Table:
    def set_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(mode)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (Membership, {"write", "read", "skip"}),
        (ListMembership, {"write", "read"}),
        (SetMembership, {"write", "read"}),
        (Chain, {"write", "read"}),
        (Table, {"write", "read"}),
    ],
)
def test_modes_are_read_off_the_function(owner: type, expected: set[str]) -> None:
    function = function_of(vars(owner)["set_mode"])
    found = accepted_values(owner, function, "mode", None)
    assert set(found) == expected
    assert len(found) == len(expected)


# Through wrappers.


def by_wraps(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def by_wrapt(raw: Any) -> Any:
    return wrapt.FunctionWrapper(raw, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))


LAYERS: dict[str, Callable[[Any], Any]] = {
    "wraps in classmethod": lambda raw: classmethod(by_wraps(raw.__func__)),
    "wrapt around classmethod": by_wrapt,
    "wrapt in classmethod": lambda raw: classmethod(by_wrapt(raw.__func__)),
    "all of them": lambda raw: by_wrapt(classmethod(by_wraps(by_wraps(raw.__func__)))),
    "bound": lambda raw: raw.__get__(None, ByChain),
}


@pytest.mark.parametrize("how", LAYERS)
def test_wrappers_hide_nothing(how: str) -> None:
    """SGLang's own function is found below whatever was put around it."""
    raw = vars(ByChain)["from_string"]
    layered = LAYERS[how](raw)
    assert function_of(layered) is raw.__func__
    assert of(ByChain, layered) == ("fa3", "fa4", "dsa")
    assert raw.__func__.__code__ in codes_of(layered, ByChain)


def test_codes_are_those_of_every_layer_and_of_missing() -> None:
    class Forgiving(Enum):
        A = "a"

        @classmethod
        def _missing_(cls, value: object) -> None:
            return None

        @classmethod
        def from_string(cls, value: str) -> Forgiving:
            return cls(value)

    inner = vars(Forgiving)["from_string"].__func__
    outer = by_wraps(inner)
    missing = vars(Forgiving)["_missing_"].__func__
    assert codes_of(classmethod(outer), Forgiving) == {
        inner.__code__,
        outer.__code__,
        missing.__code__,
    }
    assert codes_of(len, object) == frozenset()


def test_unwrap_gives_each_layer_once_outermost_first() -> None:
    def inner() -> None: ...

    outer = by_wraps(inner)
    layered = classmethod(outer)
    assert list(unwrap(layered)) == [layered, outer, inner]
    assert list(unwrap(None)) == []
    assert list(unwrap(3)) == [3]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_chain_that_goes_round(length: int) -> None:
    """``__wrapped__`` is anyone's to set, and may lead back."""

    def make() -> FunctionType:
        def layer() -> None: ...

        return layer

    layers = [make() for _ in range(length)]
    for layer, following in zip(layers, [*layers[1:], layers[0]], strict=True):
        layer.__wrapped__ = following  # type: ignore[attr-defined]
    assert list(unwrap(layers[0])) == layers
    assert function_of(layers[0]) is layers[-1]


def test_a_chain_without_end() -> None:
    """An object that makes up any attribute, as stand-ins in tests do."""

    class Obliging:
        def __getattr__(self, name: str) -> Any:
            return Obliging()

    assert len(list(unwrap(Obliging()))) < 1000
    assert function_of(Obliging()) is None


def test_a_layer_that_cannot_be_looked_into() -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError

    def outer() -> None: ...

    closed = Closed()
    outer.__wrapped__ = closed  # type: ignore[attr-defined]
    assert list(unwrap(outer)) == [outer, closed]
    assert function_of(outer) is outer


def test_lazy_tables_stay_unloaded() -> None:
    """A name that a function uses may stand for a module yet to be loaded."""
    loaded: list[str] = []

    class Lazy:
        @property
        def __class__(self) -> Any:
            loaded.append("loaded")
            return dict

    names: dict[str, Any] = {"LAZY": Lazy()}
    exec("def from_string(cls, value): return LAZY[value]", names)  # noqa: S102
    assert candidates(object, names["from_string"], "enum") == []
    assert loaded == []

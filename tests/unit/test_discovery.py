"""Points that the table does not know are found, and nothing of the classes' own runs.

The modules here are made up. Real SGLang cannot serve: every enum with a ``from_string`` that
it has today stands in the table, so there is none to discover. A made-up module carries a name
below ``sglang.`` and is never put into ``sys.modules``, so no import can meet it.
"""

from __future__ import annotations

import functools
import sys
from enum import Enum
from types import ModuleType
from typing import Any

import pytest
import wrapt

from sgguard.discovery import class_dict, class_mro, derived_id, discover, is_enum

NAME = "sglang.srt.layers.tomorrow"


def module(source: str = "", name: str = NAME, **names: Any) -> ModuleType:
    """A module with this source, in which the given names exist beforehand."""
    found = ModuleType(name)
    vars(found).update(names)
    exec(source, vars(found))  # noqa: S102 - the source stands in this file
    assert sys.modules.get(name) is not found
    return found


def ids(found: ModuleType) -> list[str]:
    return [point.id for point, _, _ in discover(found)]


BOTH = """
from enum import Enum

class Layout(Enum):
    FLAT = "flat"
    @classmethod
    def from_string(cls, value):
        return cls(value)

class Cache:
    def set_mode(self, mode):
        self.mode = mode
"""


def test_both_kinds_are_found() -> None:
    made = module(BOTH)
    (enum, cache) = discover(made)
    point, target, cls = enum
    assert (point.id, point.kind) == ("srt.layers.tomorrow.Layout", "enum")
    assert (target.module, target.cls, target.method) == (NAME, "Layout", "from_string")
    assert cls is made.Layout
    point, target, cls = cache
    assert (point.id, point.kind) == ("srt.layers.tomorrow.Cache.mode", "mode")
    assert (target.module, target.cls, target.method) == (NAME, "Cache", "set_mode")
    assert cls is made.Cache


def test_what_is_found_is_never_called_to_ask() -> None:
    """Nothing is known of a discovered function: calling it might do something."""
    for point, _, _ in discover(module(BOTH)):
        assert not point.pure
        assert point.make_probe is None
        assert point.read_mode is None


def test_one_class_may_be_both() -> None:
    source = BOTH + "class Two(Layout.__base__):\n    def set_mode(self, mode): ...\n"
    source += "    @classmethod\n    def from_string(cls, value): ...\n"
    assert ids(module(source))[-2:] == [
        "srt.layers.tomorrow.Two",
        "srt.layers.tomorrow.Two.mode",
    ]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("sglang.srt.layers.x", "enum", "srt.layers.x.Kind"),
        ("sglang.srt.layers.x", "mode", "srt.layers.x.Kind.mode"),
        ("sglang.multimodal_gen.runtime.x", "enum", "diffusion.runtime.x.Kind"),
        ("sglang.multimodal_gen", "mode", "diffusion.Kind.mode"),
        ("sglang.multimodal_gen_tools.x", "enum", "multimodal_gen_tools.x.Kind"),
        ("sglang.srt.multimodal_gen.x", "enum", "srt.multimodal_gen.x.Kind"),
    ],
)
def test_derived_ids(name: str, kind: str, expected: str) -> None:
    assert derived_id(name, "Kind", kind) == expected


@pytest.mark.parametrize("name", ["sglang", "sglangx.y", "mypackage.sglang.x", "diffusers.x"])
def test_modules_outside_are_left_alone(name: str) -> None:
    assert ids(module(BOTH, name)) == []


@pytest.mark.parametrize("name", [None, 3, b"sglang.x"])
def test_a_module_without_a_name(name: object) -> None:
    made = module(BOTH)
    made.__dict__["__name__"] = name
    assert list(discover(made)) == []


@pytest.mark.parametrize(
    ("what", "source"),
    [
        ("a plain function", "class A(Enum):\n    def from_string(value): ..."),
        ("static", "class A(Enum):\n    @staticmethod\n    def from_string(value): ..."),
        ("a property", "class A(Enum):\n    @property\n    def from_string(self): ..."),
        ("no Enum", "class A:\n    @classmethod\n    def from_string(cls, value): ..."),
        ("inherited", "class B:\n  @classmethod\n  def from_string(cls, v): ...\n"
                      "class A(B, Enum): ..."),
        ("no value", "class A:\n    def set_mode(self): ..."),
        ("two values", "class A:\n    def set_mode(self, mode, strict): ..."),
        ("another name", "class A:\n    def set_mode(self, value): ..."),
        ("a classmethod", "class A:\n    @classmethod\n    def set_mode(cls, mode): ..."),
        ("static mode", "class A:\n    @staticmethod\n    def set_mode(mode): ..."),
        ("a constant", "class A:\n    set_mode = 'mode'"),
        ("built in", "class A:\n    set_mode = len"),
        ("an object", "class B: ...\nclass A:\n    set_mode = B()"),
        ("a function", "def set_mode(self, mode): ...\ndef from_string(cls, value): ..."),
        ("nested", "class A:\n    class B:\n        def set_mode(self, mode): ..."),
        ("an instance", "class _A: ...\nA = _A()\nA.set_mode = lambda self, mode: 0"),
        ("made in a call", "def f():\n  class A:\n    def set_mode(self, mode): ..."),
    ],
)  # fmt: skip
def test_what_only_looks_alike_is_left_alone(what: str, source: str) -> None:
    assert ids(module(source, Enum=Enum)) == []


def test_imported_classes_are_left_to_their_own_module() -> None:
    there = module(BOTH, "sglang.srt.other")
    here = module(Layout=there.Layout, Cache=there.Cache)
    assert ids(here) == []
    assert len(ids(there)) == 2


def test_a_class_under_two_names_is_one_point() -> None:
    assert ids(module(BOTH + "Alias = Cache\n")) == [
        "srt.layers.tomorrow.Layout",
        "srt.layers.tomorrow.Cache.mode",
    ]


def test_the_name_is_the_one_the_module_has_it_under() -> None:
    """The class's own name may lead nowhere, and then the guard would be thought lost."""
    source = "class _Hidden:\n    def set_mode(self, mode): ...\nCache = _Hidden\ndel _Hidden\n"
    ((point, target, cls),) = discover(module(source))
    assert (point.id, target.cls) == ("srt.layers.tomorrow.Cache.mode", "Cache")
    assert cls.__name__ == "_Hidden"


def by_wraps(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Guarding(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """As sgguard's own wrapper is: a subclass."""


@pytest.mark.parametrize("kind", [wrapt.FunctionWrapper, Guarding])
def test_methods_that_something_has_wrapped(kind: Any) -> None:
    """By functools, by wrapt, or by both: the method below is what counts."""
    made = module(BOTH)

    def around(raw: Any) -> Any:
        return kind(raw, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))

    set_mode = vars(made.Cache)["set_mode"]
    from_string = vars(made.Layout)["from_string"]
    for wrapped in (around(set_mode), by_wraps(set_mode), around(around(by_wraps(set_mode)))):
        made.Cache.set_mode = wrapped
        assert "srt.layers.tomorrow.Cache.mode" in ids(made)
    for wrapped in (
        around(from_string),
        around(around(from_string)),
        classmethod(by_wraps(from_string.__func__)),
    ):
        made.Layout.from_string = wrapped
        assert "srt.layers.tomorrow.Layout" in ids(made)
    made.Cache.set_mode = around(lambda self, value: None)
    assert ids(made) == ["srt.layers.tomorrow.Layout"]


def test_a_wrapper_around_itself() -> None:
    made = module(BOTH)
    vars(made.Cache)["set_mode"].__wrapped__ = vars(made.Cache)["set_mode"]
    assert len(ids(made)) == 2

    def loop(self: object) -> None: ...

    loop.__wrapped__ = loop  # type: ignore[attr-defined]
    made.Cache.set_mode = loop
    assert ids(made) == ["srt.layers.tomorrow.Layout"]


# Nothing of theirs runs.


class Ran:
    """Notes what was asked of a class or object that must be left alone."""

    def __init__(self) -> None:
        self.what: list[str] = []

    def __call__(self, what: str) -> Any:
        self.what.append(what)
        raise RuntimeError(what)


def watching(ran: Ran, base: type = type) -> Any:
    """A metaclass that notes whatever is asked of its classes."""

    class Meta(base):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            return ran(name)

        def __eq__(self, other: object) -> bool:
            return bool(ran("=="))

        def __hash__(self) -> int:
            return int(ran("hash"))

        def __instancecheck__(self, instance: object) -> bool:
            return bool(ran("isinstance"))

        def __subclasscheck__(self, subclass: type) -> bool:
            return bool(ran("issubclass"))

        def __iter__(self) -> Any:
            return ran("iter")

        def __len__(self) -> int:
            return int(ran("len"))

        def __bool__(self) -> bool:
            return bool(ran("bool"))

    return Meta


def test_no_metaclass_runs() -> None:
    """Not even for a class that is found."""
    ran = Ran()
    meta = watching(ran)

    class Cache(metaclass=meta):
        __module__ = NAME

        def set_mode(self, mode: object) -> None: ...

    class Other(metaclass=meta):
        __module__ = NAME

    assert ids(module(Cache=Cache, Other=Other)) == ["srt.layers.tomorrow.Cache.mode"]
    assert ran.what == []
    assert class_dict(Cache)["__module__"] == NAME
    assert class_mro(Cache)[-1] is object
    assert not is_enum(Cache)
    assert ran.what == []
    with pytest.raises(RuntimeError):
        Cache.anything  # noqa: B018 - the trap is one
    assert ran.what == ["anything"]


def test_no_metaclass_of_an_enum_runs() -> None:
    ran = Ran()

    class Layout(Enum):
        FLAT = "flat"

        @classmethod
        def from_string(cls, value: str) -> Layout:
            return cls(value)

    Layout.__module__ = NAME
    made = module(Layout=Layout)
    Layout.__class__ = watching(ran, type(Enum))
    assert ids(made) == ["srt.layers.tomorrow.Layout"]
    assert is_enum(Layout)
    assert ran.what == []


def test_no_lazy_object_is_loaded() -> None:
    """Proxies and lazy modules load what they stand for at the first touch."""
    ran = Ran()

    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            return ran(name)

        def __eq__(self, other: object) -> bool:
            return bool(ran("=="))

        def __hash__(self) -> int:
            return int(ran("hash"))

        def __bool__(self) -> bool:
            return bool(ran("bool"))

    class LazyModule(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            return ran(name)

    class Unsure:
        @property
        def __class__(self) -> Any:
            return ran("__class__")

    made = module(BOTH, lazy=Lazy(), module=LazyModule("x"), unsure=Unsure())
    assert len(ids(made)) == 2
    assert ran.what == []


def test_no_attribute_of_a_class_is_looked_up() -> None:
    """A descriptor, or an odd object in the place of a method, stays untouched."""
    ran = Ran()

    class Descriptor:
        def __get__(self, instance: object, owner: type) -> Any:
            return ran("__get__")

        def __getattribute__(self, name: str) -> Any:
            return ran(name)

        def __eq__(self, other: object) -> bool:
            return bool(ran("=="))

        __hash__ = object.__hash__

    class Odd:
        set_mode = from_string = Descriptor()

    class OddEnum(Enum):
        @property
        def __doc__(self) -> Any:  # type: ignore[override]
            return ran("__doc__")

    type.__setattr__(Odd, "__module__", Descriptor())
    type.__setattr__(OddEnum, "from_string", Descriptor())
    OddEnum.__module__ = NAME
    made = module(BOTH, Odd=Odd, OddEnum=OddEnum)
    assert len(ids(made)) == 2

    class Odder:
        __module__ = NAME
        set_mode = Descriptor()

    assert ids(module(Odder=Odder)) == []
    assert ran.what == []


def test_a_wrapper_class_that_hides_its_module() -> None:
    """The class of what stands in a method's place may say nothing of itself."""
    kind = type("Wrapper", (), {"__module__": None})
    cache = type("Cache", (), {"__module__": NAME, "set_mode": kind()})
    assert ids(module(Cache=cache)) == []


def test_names_may_come_and_go_while_looking() -> None:
    """Another thread may still be running the module."""
    made = module(BOTH)
    for i, _ in enumerate(discover(made)):
        vars(made)[f"more_{i}"] = i
    assert "more_1" in vars(made)

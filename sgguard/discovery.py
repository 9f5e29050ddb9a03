"""Points that the table does not know, found as SGLang's modules are imported.

Next month's SGLang may take enumerated values in new places. Any Enum under ``sglang.`` that
defines a ``from_string`` classmethod, and any class that defines ``set_mode(self, mode)``,
becomes a point with a derived id. Only the module's own top-level classes are looked at, and
only through ``type``'s own attribute access: no property, metaclass hook or lazy attribute
of theirs runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from sgguard.catalogue import Point, Target

PREFIX = "sglang."

_type_dict = type.__dict__["__dict__"].__get__
_type_mro = type.__dict__["__mro__"].__get__
_type_name = type.__dict__["__name__"].__get__


def class_dict(cls: type) -> Mapping[str, Any]:
    """The attributes that a class itself defines, read past any metaclass."""
    return cast("Mapping[str, Any]", _type_dict(cls))


def class_mro(cls: type) -> tuple[type, ...]:
    """The method resolution order, read past any metaclass."""
    return cast("tuple[type, ...]", _type_mro(cls))


def is_enum(cls: type) -> bool:
    """Whether a class is an Enum. By identity: ``in`` would run a metaclass's ``__eq__``."""
    return any(base is Enum for base in class_mro(cls))


def derived_id(module: str, cls: str, kind: str) -> str:
    """The id of a discovered point.

    ``sglang.srt.layers.x`` with class ``Kind`` gives ``srt.layers.x.Kind``;
    ``sglang.multimodal_gen…`` is shortened to ``diffusion…``, as in the table. A
    ``set_mode`` adds ``.mode``.
    """
    name = module.removeprefix(PREFIX)
    head, dot, rest = name.partition(".")
    if head == "multimodal_gen":
        name = f"diffusion{dot}{rest}"
    return f"{name}.{cls}.mode" if kind == "mode" else f"{name}.{cls}"


def discover(module: ModuleType) -> Iterator[tuple[Point, Target, type]]:
    """Yield the guardable classes that a module under ``sglang.`` defines itself."""
    module_name = module.__dict__.get("__name__")
    if not isinstance(module_name, str) or not module_name.startswith(PREFIX):
        return
    seen: set[int] = set()
    for key, value in list(module.__dict__.items()):
        # type(value), not isinstance: a lazy proxy would load what it stands for.
        if not issubclass(type(value), type) or id(value) in seen:
            continue
        seen.add(id(value))
        own = class_dict(value)
        home = own.get("__module__")
        if type(home) is not str or home != module_name:
            continue
        # The name under which the module has it, which need not be the class's own.
        name = _type_name(value)
        if module.__dict__.get(name) is not value:
            name = key
        if is_enum(value) and _is_classmethod(own.get("from_string")):
            point = Point(
                derived_id(module_name, name, "enum"),
                "enum",
                "discovered",
                (Target(module_name, name, "from_string", "discovered"),),
                pure=False,
            )
            yield point, point.targets[0], value
        if _takes_mode(own.get("set_mode")):
            point = Point(
                derived_id(module_name, name, "mode"),
                "mode",
                "discovered",
                (Target(module_name, name, "set_mode", "discovered"),),
                pure=False,
            )
            yield point, point.targets[0], value


def _layers(method: object) -> Iterator[object]:
    """A method and what wrapt's FunctionWrapper or ``functools.wraps`` put around."""
    for _ in range(16):
        yield method
        if type(method) is FunctionType:
            method = method.__dict__.get("__wrapped__")
        elif any(_type_name(base) == "FunctionWrapper" for base in class_mro(type(method))):
            method = cast("Any", method).__wrapped__
        else:
            return


def _is_classmethod(method: object) -> bool:
    return any(issubclass(type(layer), classmethod) for layer in _layers(method))


def _takes_mode(method: object) -> bool:
    for layer in _layers(method):
        if type(layer) is FunctionType:
            code: CodeType = layer.__code__
            if code.co_argcount == 2 and code.co_varnames[:2] == ("self", "mode"):
                return True
    return False

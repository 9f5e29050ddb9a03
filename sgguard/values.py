"""How a value that came in is shown: bounded, escaped, and never by trusting it.

A received value can be anything: a string of ten megabytes, an object whose ``repr`` raises,
a tensor on a GPU. What this module gives back is always a short printable string.
"""

from __future__ import annotations

import reprlib
import sys
from array import array
from collections import deque
from enum import Enum
from typing import Any, Final, TypeGuard

ELLIPSIS: Final = "…"
DEFAULT_LENGTH: Final = 64

_name_of = type.__dict__["__name__"].__get__


def type_name(value: object) -> str:
    """The name of a value's type, read past any metaclass."""
    return str(_name_of(type(value)))


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a string by its type, whatever its ``__class__`` claims."""
    return issubclass(type(value), str)


def is_array(value: object) -> bool:
    """Whether a value is a torch tensor or a NumPy array.

    Reads ``sys.modules`` instead of importing: if torch was never imported, nothing can be a
    tensor.
    """
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    # A module that is still being imported has no such attribute yet.
    tensor = getattr(torch, "Tensor", None) if torch else None
    ndarray = getattr(numpy, "ndarray", None) if numpy else None
    # Neither is a class where tests put a stand-in for the module.
    return any(isinstance(kind, type) and isinstance(value, kind) for kind in (tensor, ndarray))


def _show_array(value: Any) -> str:
    # Shape, dtype and device are metadata: reading them copies nothing from the GPU.
    parts = [f"shape={tuple(value.shape)}", f"dtype={value.dtype}"]
    device = getattr(value, "device", None)
    if device is not None:
        parts.append(f"device={device}")
    return f"{type_name(value)}({', '.join(parts)})"


def _raised(value: object, error: Exception) -> str:
    return f"<{type_name(value)}, whose repr raised {type_name(error)}>"


_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque, array)
#: reprlib sorts a dict or set before it takes the first few; a larger one is described.
_MOST_SORTED: Final = 1000


class _Repr(reprlib.Repr):
    """reprlib's bounded repr, with arrays and large containers described instead of printed."""

    def repr1(self, x: Any, level: int) -> str:
        if is_text(x):
            return repr(str.__getitem__(x, slice(0, self.maxstring)))
        if is_array(x):
            return _show_array(x)
        kind = type(x)
        if issubclass(kind, (bytes, bytearray)):
            return repr(bytes(memoryview(x)[: self.maxstring]))
        if issubclass(kind, int) and int.bit_length(x) > 512:
            # Longer ones cost quadratic time, and past 4300 digits raise.
            return f"<{type_name(x)} of {int.bit_length(x)} bits>"
        for base in _CONTAINERS:
            if issubclass(kind, base):
                return self._container(x, base, level)
        return self.repr_instance(x, level)

    def _container(self, x: Any, base: Any, level: int) -> str:
        # By exact type: reprlib goes by the name of the class, which says nothing, and a
        # subclass (OrderedDict, a namedtuple) prints all it holds, tensors too.
        size: int = base.__len__(x)
        sorts = base in (dict, set, frozenset)
        if type(x) is not base or base is array or (sorts and size > _MOST_SORTED):
            return f"<{type_name(x)} of {size} item{'s' * (size != 1)}>"
        text: str = getattr(self, f"repr_{base.__name__}")(x, level)
        return text

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = repr(x)  # may be of a subclass of str
        except Exception as error:  # noqa: BLE001 - any repr may do anything
            return _raised(x, error)
        return str.__getitem__(text, slice(0, self.maxother))


def escape(text: str) -> str:
    """Replace everything that is not printable, so that no value can forge a log line."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def cut(text: str, length: int) -> str:
    """At most ``length`` characters, the last of them ``…`` if any were dropped."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + ELLIPSIS[:length]


def show(value: object, length: int = DEFAULT_LENGTH) -> str:
    """Show a received value in at most ``length`` characters of printable text.

    Strings are shown by their ``repr``; a tensor by type, shape, dtype and device; a
    container of a type of its own by type and size; an object whose ``repr`` raises by its
    type. Never raises an ``Exception``.
    """
    # One character more than fits, so that a longer text is seen to be cut.
    bounded = _Repr()
    bounded.maxlevel = 3
    bounded.maxstring = bounded.maxother = length + 1
    try:
        text = bounded.repr1(value, bounded.maxlevel)
    except Exception as error:  # noqa: BLE001 - hostile containers, shapes and dtypes
        text = _raised(value, error)
    # Cut before it is escaped, which goes character by character.
    return cut(escape(text[: length + 1]), length)


def plain(value: object) -> str | None:
    """The text of a string, an enum member with a string value or ``None``; else nothing.

    Used where a mode becomes an attribute: ``"read"`` and a member equal to it are one mode.
    """
    if value is None:
        return "none"
    if is_text(value):
        return str.__str__(value)
    if issubclass(type(value), Enum):
        inner = getattr(value, "value", None)
        return str.__str__(inner) if is_text(inner) else None
    return None

"""How a value that came in is shown: bounded, escaped, and never by trusting it.

A received value can be anything: a string of ten megabytes, an object whose ``repr`` raises,
a tensor on a GPU. What this module gives back is always a short printable string.
"""

from __future__ import annotations

import reprlib
import sys
from enum import Enum
from itertools import islice
from typing import Any, Final

ELLIPSIS: Final = "…"
DEFAULT_LENGTH: Final = 64


def is_array(value: object) -> bool:
    """Whether a value is a torch tensor or a NumPy array.

    Reads ``sys.modules`` instead of importing: if torch was never imported, nothing can be a
    tensor.
    """
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    # A module that is still being imported has no such attribute yet.
    tensor = getattr(torch, "Tensor", None) if torch else None
    array = getattr(numpy, "ndarray", None) if numpy else None
    return (tensor is not None and isinstance(value, tensor)) or (
        array is not None and isinstance(value, array)
    )


def _show_array(value: Any) -> str:
    # Shape, dtype and device are metadata: reading them copies nothing from the GPU.
    parts = [f"shape={tuple(value.shape)}", f"dtype={value.dtype}"]
    device = getattr(value, "device", None)
    if device is not None:
        parts.append(f"device={device}")
    return f"{type(value).__name__}({', '.join(parts)})"


class _Repr(reprlib.Repr):
    """reprlib's bounded repr, with arrays described instead of printed."""

    def repr1(self, x: Any, level: int) -> str:
        if is_array(x):
            return _show_array(x)
        if isinstance(x, str):
            return repr(str.__getitem__(x, slice(0, self.maxstring)))
        if isinstance(x, (bytes, bytearray)):
            return repr(bytes(memoryview(x)[: self.maxstring]))
        if isinstance(x, int) and not isinstance(x, (bool, Enum)) and x.bit_length() > 512:
            # Longer ones cost quadratic time, and past 4300 digits raise.
            return f"<int of {x.bit_length()} bits>"
        return super().repr1(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return repr(x)
        except Exception as error:  # noqa: BLE001 - any repr may do anything
            return f"<{type(x).__name__}, whose repr raised {type(error).__name__}>"


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
    return text if len(text) <= length else text[: max(length - 1, 0)] + ELLIPSIS


def show(value: object, length: int = DEFAULT_LENGTH) -> str:
    """Show a received value in at most ``length`` characters of printable text.

    Strings are shown by their ``repr``; a tensor by type, shape, dtype and device; an object
    whose ``repr`` raises by its type. Never raises an ``Exception``.
    """
    # One character more than fits, so that a longer string is seen to be cut.
    bounded = _Repr()
    bounded.maxlevel = 3
    bounded.maxstring = bounded.maxother = bounded.maxlong = length + 1
    try:
        text = bounded.repr1(value, bounded.maxlevel)
    except Exception as error:  # noqa: BLE001 - hostile containers, shapes and dtypes
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    # A repr of megabytes is cut before it is escaped, character by character.
    return cut(escape("".join(islice(text, 4 * length + 4))), length)


def plain(value: object) -> str | None:
    """The text of a string, an enum member with a string value or ``None``; else nothing.

    Used where a mode becomes an attribute: ``"read"`` and a member equal to it are one mode.
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Enum) and isinstance(value.value, str):
        return str.__str__(value.value)
    return None

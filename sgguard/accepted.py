"""What SGLang accepts, read from SGLang.

Nothing here is a list of values. Candidates are read off the class and its function (enum
members, constants, the tables it looks values up in), and then SGLang is asked about each
where asking has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, cast

from sgguard.discovery import class_dict, is_enum

#: An object may make up an inner one whenever it is asked; a chain this long has no end.
_MOST_LAYERS = 64
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*\Z")


def unwrap(raw: object) -> Iterator[Any]:
    """Yield a raw class attribute and everything it wraps, outermost first.

    Follows ``classmethod.__func__``, ``functools.wraps`` and wrapt by the attributes they
    share. A layer that cannot be looked into is the last one.
    """
    seen: list[object] = []  # keeps the layers, so that no identity is used twice
    current: Any = raw
    while current is not None and len(seen) < _MOST_LAYERS:
        if any(current is layer for layer in seen):
            return
        seen.append(current)
        yield current
        try:
            inner = getattr(current, "__wrapped__", None)
            current = inner if inner is not None else getattr(current, "__func__", None)
        except Exception:  # noqa: BLE001 - other people's __getattr__ may do anything
            return


def function_of(raw: object) -> FunctionType | None:
    """The innermost Python function behind a raw class attribute: SGLang's own."""
    found: FunctionType | None = None
    for layer in unwrap(raw):
        if type(layer) is FunctionType:
            found = layer
    return found


def codes_of(raw: object, owner: type) -> frozenset[CodeType]:
    """The code objects that count as the guarded function itself.

    Every Python function in the wrapper chain, and the enum's own ``_missing_``.
    """
    found = [layer.__code__ for layer in unwrap(raw) if type(layer) is FunctionType]
    missing = function_of(class_dict(owner).get("_missing_"))
    if missing is not None:
        found.append(missing.__code__)
    return frozenset(found)


def _strings(value: object) -> list[str]:
    """The strings of a table: the keys of a mapping, the items of a set or sequence."""
    # type(value), not isinstance: a lazy proxy would load what it stands for.
    if issubclass(type(value), (dict, set, frozenset, tuple, list, MappingProxyType)):
        return [item for item in list(cast("Iterable[object]", value)) if type(item) is str]
    return []


def _tables(function: FunctionType, owner: type, depth: int = 1) -> Iterator[str]:
    """Strings from the tables that a function names, and from functions it calls."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name, class_dict(owner).get(name))
        yield from _strings(value)
        if depth and type(value) is FunctionType:
            yield from _tables(value, owner, depth - 1)


def _members(owner: type) -> Iterator[str]:
    if not is_enum(owner):
        return
    members: dict[str, Any] = dict(class_dict(owner).get("_member_map_", {}))
    yield from (member.value for member in members.values() if type(member.value) is str)
    yield from members  # the names; an alias has its own


def candidates(owner: type, function: FunctionType | None, kind: str) -> list[object]:
    """Values that a class may accept, most telling first, without asking it.

    Sources: enum members; the tuples of constants a function tests against; the tables it
    names; single constants that look like a word.
    """
    found: list[object] = list(_members(owner)) if kind == "enum" else []
    if function is not None:
        constants = function.__code__.co_consts
        for constant in constants:
            found.extend(_strings(constant))
        found.extend(_tables(function, owner))
        words = [item for item in constants if type(item) is str and _WORD.match(item)]
        found.extend(word for word in words if word != function.__doc__)
    return list(dict.fromkeys(found))


def accepted_values(
    owner: type,
    function: FunctionType | None,
    kind: str,
    accepts: Callable[[object], bool] | None,
) -> tuple[object, ...]:
    """The values that SGLang accepts, spelt as SGLang spells them.

    Args:
        owner: the class with the guarded method.
        function: its innermost function (constants and tables are read from it).
        kind: ``enum`` or ``mode``.
        accepts: asks SGLang about one value without effect, or ``None`` where that cannot be
            done; then the candidates are given as they were read.

    Returns:
        Strings, and ``None`` last where SGLang takes it. Spellings that differ only by case
        are given once.
    """
    found = candidates(owner, function, kind)
    if accepts is not None:
        found = [value for value in [*found, None] if accepts(value)]
    unique: dict[object, object] = {}
    for value in found:
        unique.setdefault(value.casefold() if isinstance(value, str) else value, value)
    return tuple(unique.values())

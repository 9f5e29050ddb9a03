"""What SGLang accepts, read from SGLang.

Nothing here is a list of values. Candidates are read off the class and its function (enum
members, constants, the tables it looks values up in), and then SGLang is asked about each
where asking has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import CodeType, FunctionType
from typing import Any

from sgguard.discovery import class_dict, class_mro

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*\Z")


def unwrap(raw: object) -> Iterator[Any]:
    """Yield a raw class attribute and everything it wraps, outermost first.

    Follows ``classmethod.__func__``, ``functools.wraps`` and wrapt by the attributes they
    share.
    """
    seen: set[int] = set()
    current: Any = raw
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        inner = getattr(current, "__wrapped__", None)
        current = inner if inner is not None else getattr(current, "__func__", None)


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
    if isinstance(value, (dict, set, frozenset, tuple, list)):
        return [item for item in list(value) if type(item) is str]
    return []


def _tables(function: FunctionType, owner: type, depth: int = 1) -> Iterator[str]:
    """Strings from the tables that a function names, and from functions it calls."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name, class_dict(owner).get(name))
        yield from _strings(value)
        if depth and type(value) is FunctionType:
            yield from _tables(value, owner, depth - 1)


def _members(owner: type) -> Iterator[str]:
    if Enum not in class_mro(owner):
        return
    members: Iterable[Any] = class_dict(owner).get("_member_map_", {}).values()
    members = list(members)
    yield from (member.value for member in members if type(member.value) is str)
    yield from (member.name for member in members)


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

"""Normalising: the ways to read a refused value that are not guesses.

Each step rewrites the text the step before it left. After every rewrite SGLang is asked; the
first text it accepts is used. A near miss is never used: naming it is the note's business.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Literal

from sgguard.values import is_text

Step = Literal["enum_value", "white_space", "case", "separators", "aliases"]

STEPS: Final[tuple[Step, ...]] = ("enum_value", "white_space", "case", "separators", "aliases")
"""The steps in the order they are tried (also the closed set of ``sgguard.step``)."""

_QUOTES: Final = frozenset("'\"`")
#: Longer text is no spelling of an enumerated value, and folding megabytes takes time.
_LONGEST: Final = 256


def fold(text: str) -> str:
    """Unicode NFKC and case folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def canonical(text: str) -> str:
    """Folded, with ``-``, ``_`` and spaces made one separator. Aliases compare by this."""
    return "_".join(fold(text).replace("-", " ").replace("_", " ").split())


def unquote(text: str) -> str:
    """Remove surrounding white space and matching quotes until none are left."""
    while True:
        inner = text.strip()
        if len(inner) >= 2 and inner[0] == inner[-1] and inner[0] in _QUOTES:
            inner = inner[1:-1]
        if inner == text:
            return text
        text = inner


def _texts(text: str, step: Step, accepted: Callable[[], Sequence[object]]) -> Iterator[str]:
    """What one step makes of a text; the last one is what the next step starts from.

    Where two accepted spellings come to the same text, choosing would be a guess: nothing.
    """
    if step == "white_space":
        yield unquote(text)
    elif step == "case":
        folded = fold(text)
        same = [v for v in accepted() if isinstance(v, str) and fold(v) == folded]
        if len(same) <= 1:
            yield from same
            yield folded
    elif step == "separators":
        form = canonical(text)
        same = [v for v in accepted() if isinstance(v, str) and canonical(v) == form]
        if len(same) == 1:
            yield same[0]
        elif not same:  # nothing could be read from SGLang: the three uniform spellings
            yield from (form.replace("_", separator) for separator in "- _")


def readings(
    value: object,
    *,
    steps: Sequence[Step],
    aliases: Mapping[str, object],
    accepted: Callable[[], Sequence[object]],
    owner: type,
) -> Iterator[tuple[Step, object]]:
    """Yield the readings of a refused value, in the order they are to be tried.

    Args:
        value: the value as it came.
        steps: the steps that are on.
        aliases: ``canonical(alias)`` to the value it stands for.
        accepted: gives the values SGLang accepts; called only where a step needs it.
        owner: the guarded class. A member of it may be read by its name as well.

    Yields:
        The step, and a value that differs from all before it. Never an empty string: nobody
        means one, and SGLang 0.5.20's ``CPAttentionBackendKind`` takes it for DSA.
    """
    tried: list[object] = [value]

    def fresh(candidate: object) -> bool:
        # A foreign enum's value may be anything, an array too, whose == gives no bool.
        if is_text(candidate):
            if not str.__len__(candidate):
                return False
            if any(type(candidate) is type(t) and candidate == t for t in tried):
                return False
        elif any(candidate is t for t in tried):
            return False
        tried.append(candidate)
        return True

    texts: list[str] = []
    if issubclass(type(value), Enum) and isinstance(value, Enum):
        if "enum_value" not in steps:
            return
        # Only a member of the guarded enum itself may go by its name: what SGLang would
        # return for it is known. A member of any other enum stands for its value alone.
        spellings = [value.value, value.name] if isinstance(value, owner) else [value.value]
        for spelling in spellings:
            if fresh(spelling):
                yield "enum_value", spelling
            if is_text(spelling):
                texts.append(str.__str__(spelling))
    elif is_text(value):
        texts.append(str.__str__(value))
    for start in texts:
        if len(start) > _LONGEST:
            continue
        text = start
        for step in steps:
            if step == "enum_value":
                continue
            if step == "aliases":
                target = aliases.get(canonical(text), aliases)
                if target is not aliases and fresh(target):
                    yield step, target
                continue
            for rewritten in _texts(text, step, accepted):
                if fresh(rewritten):
                    yield step, rewritten
                text = rewritten

"""The note on SGLang's exception: what is accepted, what came close, how to allow a repair."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from sgguard.catalogue import UNSET
from sgguard.repair import canonical
from sgguard.values import escape, is_text, show

if TYPE_CHECKING:
    from sgguard.decision import Decision

#: Longer text is no misspelling. Escaped it still fits a YAML key, of at most 1024 characters.
_LONGEST = 100
#: Words that stand for themselves in YAML, unlike ``null`` or ``1e3``.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_TAKEN = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


def close_match(value: object, accepted: Sequence[object]) -> str | None:
    """The accepted value that is spelt most like a refused one, if any is close."""
    text = getattr(value, "value", None) if issubclass(type(value), Enum) else value
    if not is_text(text) or str.__len__(text) > _LONGEST:
        return None
    spelt = {canonical(item): item for item in accepted if isinstance(item, str)}
    found = difflib.get_close_matches(canonical(str.__str__(text)), list(spelt), n=1, cutoff=0.6)
    return spelt[found[0]] if found else None


def compose(decision: Decision, accepted: Sequence[object], repairable: object) -> str:
    """The text of the note.

    Args:
        decision: the refusal.
        accepted: the values SGLang accepts.
        repairable: what ``action: normalise`` would use, or ``UNSET``.
    """
    point = decision.point.id
    shown = show(decision.received)
    values = ", ".join(show(value) for value in accepted) or "(could not be read)"
    lines = [f"sgguard: {shown} was refused at {point}. SGLang accepts: {values}."]
    match = close_match(decision.received, accepted)
    if repairable is not UNSET:
        lines.append(f"It reads as {show(repairable)}. To repair it, put into the policy:")
        rule = "{action: normalise}"
    elif match is not None and is_text(decision.received):
        lines.append(f"The closest is {show(match)}. If that is meant, put into the policy:")
        alias = _quoted(str.__str__(decision.received))
        rule = f"{{action: normalise, aliases: {{{alias}: {_scalar(match)}}}}}"
    else:
        # Which value is harmless is not for sgguard to guess: "write" for a cache is not.
        lines.append("To go on with one of these in its place, put into the policy:")
        rule = "{action: fallback, fallback: VALUE}"
    lines.append(f"  points: {{{point}: {rule}}}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # A YAML double-quoted scalar, so that the line can be pasted whatever the value holds.
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _scalar(text: str) -> str:
    return text if _PLAIN.match(text) and text.lower() not in _TAKEN else _quoted(text)


def add(decision: Decision, accepted: Sequence[object], repairable: object) -> str:
    """Put the note on the exception.

    Returns:
        Nothing, or the note where exceptions take none (Python 3.10): it is for the log then.
    """
    text = compose(decision, accepted, repairable)
    add_note = getattr(decision.error, "add_note", None)
    if add_note is None:
        return text
    if text not in getattr(decision.error, "__notes__", ()):
        add_note(text)
    return ""

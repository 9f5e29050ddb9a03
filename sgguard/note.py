"""The note on SGLang's exception: what is accepted, what came close, how to allow a repair."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from sgguard.catalogue import UNSET
from sgguard.repair import canonical
from sgguard.values import escape, show

if TYPE_CHECKING:
    from sgguard.guard import Decision

logger = logging.getLogger("sgguard")


def close_match(value: object, accepted: Sequence[object]) -> str | None:
    """The accepted value that is spelt most like a refused one, if any is close."""
    text = value.value if isinstance(value, Enum) else value
    if not isinstance(text, str) or len(text) > 256:
        return None
    spelt = {canonical(item): item for item in accepted if isinstance(item, str)}
    found = difflib.get_close_matches(canonical(text), list(spelt), n=1, cutoff=0.6)
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
    elif match is not None and isinstance(decision.received, str):
        lines.append(f"The closest is {show(match)}. If that is meant, put into the policy:")
        rule = f"{{action: normalise, aliases: {{{_quoted(decision.received)}: {match}}}}}"
    else:
        # Which value is harmless is not for sgguard to guess: "write" for a cache is not.
        lines.append("To go on with one of these in its place, put into the policy:")
        rule = "{action: fallback, fallback: VALUE}"
    lines.append(f"  points: {{{point}: {rule}}}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # A YAML double-quoted scalar, so that the line can be pasted whatever the value holds.
    return '"' + escape(text[:64].replace("\\", "\\\\").replace('"', '\\"')) + '"'


def add(decision: Decision, accepted: Sequence[object], repairable: object) -> None:
    """Put the note on the exception, or into the log where exceptions take none (3.10)."""
    text = compose(decision, accepted, repairable)
    add_note = getattr(decision.error, "add_note", None)
    if add_note is None:
        logger.warning("%s", text)
    elif text not in getattr(decision.error, "__notes__", ()):
        add_note(text)

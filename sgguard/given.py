"""The ways a policy can be given: a path, a text, a ``Policy``, the environment.

A text is kept unparsed until it is needed, since parsing loads pydantic and yaml.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sgguard._text import read_text
from sgguard.errors import PolicyError
from sgguard.values import show

if TYPE_CHECKING:
    from sgguard.policy_file import Source

ENV_POLICY: Final = "SGGUARD_POLICY"
ENV_ACTION: Final = "SGGUARD_ACTION"
ENV_DISABLED: Final = "SGGUARD_DISABLED"
INLINE: Final = "inline:"
"""Stands before a policy's text where a path could stand."""


@dataclass(frozen=True)
class Unread:
    """The text of a policy, not yet parsed.

    Attributes:
        text: the YAML.
        name: named in errors.
        path: the file it came from, if any.
    """

    text: str
    name: str
    path: str | None

    def parse(self) -> Source:
        """Parse it. Raises ``InvalidPolicyError``."""
        return parse(self.text, self.name, self.path)


def disabled() -> bool:
    return os.environ.get(ENV_DISABLED, "").strip().lower() not in (
        "", "0", "false", "no", "n", "off",
    )  # fmt: skip


def unread_of(policy: object) -> Unread | None:
    """The text of a policy given as a path, or inline; nothing for a ``Policy``."""
    if isinstance(policy, str) and policy.startswith(INLINE):
        return Unread(policy.removeprefix(INLINE), "inline", None)
    if isinstance(policy, (str, os.PathLike)):
        try:
            path = os.fsdecode(policy)
        except TypeError:
            raise PolicyError(
                f"a policy file is given by its path, not by {show(policy)}"
            ) from None
        return Unread(read_text(path), path, path)
    return None


def unread_of_action(action: str) -> Unread:
    name = action.strip().lower()
    if name not in ("observe", "normalise", "normalize"):
        hint = " (a fallback needs a value, so it needs a policy)" if name == "fallback" else ""
        raise PolicyError(f"{ENV_ACTION}={show(action)} is not one of observe, normalise{hint}")
    return Unread(f"version: 1\ndefaults: {{action: {name}}}\n", ENV_ACTION, None)


def parse(text: str, name: str, path: str | None) -> Source:
    """``policy_file.parse_policy``, imported when it is needed."""
    from sgguard.policy_file import parse_policy

    return parse_policy(text, name, path)


def source_of(policy: object) -> Source | None:
    if policy is None:
        return None
    from sgguard.policy import Policy
    from sgguard.policy_file import of_model

    if isinstance(policy, Policy):
        return of_model(policy)
    raise PolicyError(
        f"policy must be a sgguard.Policy or the path of a policy file, not {show(policy)}"
    )

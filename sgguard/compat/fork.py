"""Locks in a forked child.

A thread of the parent may hold a lock at the moment of the fork. The child has the lock, held,
and not the thread, so the first call that wants it would wait for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class HasLocks(Protocol):
    """Something with locks of its own."""

    def renew_locks(self) -> None:
        """Replace every lock by a new one. Called in a child, which has one thread."""


_objects: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(holder: HasLocks) -> None:
    """Have ``holder.renew_locks()`` called in each forked child, as long as it lives."""
    _objects.add(holder)


def _renew() -> None:
    for holder in list(_objects):
        holder.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

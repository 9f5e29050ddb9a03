"""sgguard: a runtime guard for the enumerated values that SGLang takes.

Usage::

    import sgguard.auto          # policy from SGGUARD_POLICY, else observe only
    import sglang

or, with a policy of one's own::

    import sgguard

    with sgguard.install("policy.yaml"):
        ...

``install``, ``uninstall`` and ``status`` act on this process. Importing this package imports
neither SGLang nor torch nor pydantic.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sgguard._version import __version__
from sgguard.errors import InvalidPolicyError, PolicyError, Problem, SgguardError
from sgguard.values import show

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from sgguard._status import PointStatus, Status
    from sgguard.policy import Policy
    from sgguard.policy_file import load_policy
    from sgguard.runtime import Installation

__all__ = [
    "Installation",
    "InvalidPolicyError",
    "PointStatus",
    "Policy",
    "PolicyError",
    "Problem",
    "SgguardError",
    "Status",
    "__version__",
    "install",
    "load_policy",
    "override",
    "status",
    "uninstall",
]


def install(
    policy: Policy | str | os.PathLike[str] | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Installation:
    """Guard SGLang in this process, whether it is imported already or later.

    May be called again: with a policy, that policy replaces the one in force; without, the
    one in force stays. Guards that something else replaced are put back.

    Args:
        policy: a ``Policy``, or the path of a policy file. ``None`` keeps the policy in
            force; at first that is to observe only.
        tracer_provider: where spans go. ``None`` keeps the one in force; at first that is
            OpenTelemetry's global provider.
        meter_provider: where metrics go; likewise.

    Returns:
        A handle with ``uninstall()`` and ``status()``, also a context manager.

    Raises:
        PolicyError: if the policy cannot be read, is invalid, or names a value that the
            SGLang imported in this process does not accept. Nothing is changed then.
    """
    from sgguard.runtime import runtime

    return runtime.install(policy, tracer_provider=tracer_provider, meter_provider=meter_provider)


def uninstall() -> None:
    """Take every guard off: the attributes of SGLang's classes are the objects they were.

    Where something else has wrapped a guard meanwhile, the guard stays below it and passes
    calls straight on. Counts are kept. May be called twice.
    """
    from sgguard.runtime import runtime

    runtime.uninstall()


def status() -> Status:
    """What is guarded now, what is not and why, and what has been counted."""
    from sgguard.runtime import runtime

    return runtime.status()


@contextlib.contextmanager
def override(policy: Policy | Mapping[str, Any]) -> Iterator[None]:
    """Put a policy in force for a block, for tests of code that runs under sgguard.

    Installs sgguard for the block if it is not installed. It holds for the whole process,
    not for one thread.

    Args:
        policy: a ``Policy``, or the content of a policy file as a mapping. ``version`` may
            be left out of a mapping.

    Raises:
        PolicyError: as ``install``.
    """
    from sgguard.policy import Policy
    from sgguard.policy_file import validate
    from sgguard.runtime import runtime

    if not isinstance(policy, Policy):
        if not isinstance(policy, Mapping):
            raise PolicyError(f"override takes a Policy or a mapping, not {show(policy)}")
        policy = validate({"version": 1, **policy}, "override")
    with runtime.override(policy):
        yield


def __getattr__(name: str) -> Any:
    # `import sgguard.auto` imports this package first, and must neither load pydantic nor
    # raise, even where a dependency is missing or broken.
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_LAZY = {
    "Installation": "sgguard.runtime",
    "PointStatus": "sgguard._status",
    "Policy": "sgguard.policy",
    "Status": "sgguard._status",
    "load_policy": "sgguard.policy_file",
}

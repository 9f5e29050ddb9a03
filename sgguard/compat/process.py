"""Facts about this process that a policy's ``when`` can ask for, read without importing."""

from __future__ import annotations

import os
import sys


def rank() -> int | None:
    """The global rank of this process, or ``None`` where it has none.

    From ``torch.distributed`` if its default group is up, else from the ``RANK`` variable
    that torchrun sets. Neither torch nor a process group is started for it.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:
        try:
            if distributed.is_available() and distributed.is_initialized():
                return int(distributed.get_rank())
        except (AttributeError, RuntimeError, ValueError):
            pass  # being imported or torn down in another thread
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() else None


def sglang_version() -> str | None:
    """The version of the SGLang imported here, else of the one installed, else ``None``."""
    module = sys.modules.get("sglang")
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None

"""Who called: the frames of SGLang's or the user's code above a guarded call."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType, FrameType

#: Frames that only pass a call on. They are never the caller somebody looks for.
PLUMBING = ("sgguard", "wrapt", "sglang.srt.plugins.hook_registry", "functools", "contextlib")
#: Passed over above the call site: who called the module, not how torch got there.
_TORCH_PLUMBING = ("torch.nn.modules.module", "torch.utils._contextlib")


def is_plumbing(module: object, names: tuple[str, ...] = PLUMBING) -> bool:
    """Whether code of the module of this name only passes calls on."""
    return isinstance(module, str) and any(
        module == name or module.startswith(name + ".") for name in names
    )


@dataclass(frozen=True)
class Frame:
    """One frame: ``code.function.name``, ``code.file.path``, ``code.line.number``."""

    function: str
    path: str
    line: int
    module: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


def _function_name(code: CodeType, module: object) -> str:
    name: str = getattr(code, "co_qualname", code.co_name)  # co_qualname is new in 3.11
    return f"{module}.{name}" if isinstance(module, str) and module != "__main__" else name


def _describe(frame: FrameType) -> Frame:
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    return Frame(
        _function_name(code, module),
        code.co_filename,
        frame.f_lineno,
        module if isinstance(module, str) else None,
    )


def callers(limit: int = 1) -> tuple[Frame, ...]:
    """The innermost frames outside sgguard and wrapt, the call site first.

    With ``limit`` 1, which every transition asks for, this is a handful of attribute reads.
    No frame object is kept.
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[Frame] = []
    skip: tuple[str, ...] = PLUMBING
    while frame is not None and len(found) < limit:
        if not is_plumbing(frame.f_globals.get("__name__"), skip):
            found.append(_describe(frame))
            skip = PLUMBING + _TORCH_PLUMBING
        frame = frame.f_back
    return tuple(found)

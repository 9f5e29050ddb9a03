"""The call site is the line of SGLang's or the user's code, not of what passes calls on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import pytest
import wrapt

from sgguard.callsite import Frame, callers, is_plumbing


def _pass_on(call: Callable[[], Any]) -> Any:
    return call()


def within(module: object) -> Callable[[Callable[[], Any]], Any]:
    """A function that seems to be of that module: a frame is told by its globals alone.

    So the modules named here need neither be installed nor imported.
    """
    names: dict[str, Any] = {} if module is None else {"__name__": module}
    return FunctionType(_pass_on.__code__, names)


def modules(*between: str, limit: int = 10) -> list[str | None]:
    """The modules of the callers of a call made through these, outermost first."""
    call: Callable[[], Any] = lambda: callers(limit)  # noqa: E731
    for name in reversed(between):
        call = functools.partial(within(name), call)
    return [frame.module for frame in call()]


def test_the_caller_is_this_very_line() -> None:
    line = sys._getframe().f_lineno + 1
    (frame,) = callers()
    assert frame.path == __file__
    assert frame.line == line
    assert frame.module == __name__
    assert frame.function == f"{__name__}.test_the_caller_is_this_very_line"
    assert str(frame) == f"{__file__}:{line} in {frame.function}"


def test_callers_come_innermost_first() -> None:
    def inner() -> tuple[Frame, ...]:
        return callers(2)

    def outer() -> tuple[Frame, ...]:
        return inner()

    first, second = outer()
    assert first.function.endswith("inner")
    assert second.function.endswith("outer")
    assert second.line > first.line


@pytest.mark.parametrize("limit", [0, 1, 3, 6])
def test_no_more_than_asked_for(limit: int) -> None:
    def deep(n: int) -> tuple[Frame, ...]:
        return deep(n - 1) if n else callers(limit)

    assert len(deep(10)) == limit


def test_no_more_than_there_are() -> None:
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        depth += 1
        frame = frame.f_back
    assert 0 < len(callers(100_000)) <= depth


@pytest.mark.parametrize(
    "name",
    [
        "sgguard",
        "sgguard.guard",
        "wrapt",
        "wrapt.wrappers",
        "functools",
        "contextlib",
        "sglang.srt.plugins.hook_registry",
    ],
)
def test_what_passes_calls_on_is_skipped(name: str) -> None:
    assert is_plumbing(name)
    assert modules("user", name, "sglang.a", name, name)[1:3] == ["sglang.a", "user"]


@pytest.mark.parametrize(
    "name", ["sgguard_user", "my.sgguard", "wrapt_tools", "sglang.srt.plugins", "", "__main__"]
)
def test_names_that_only_look_alike_are_not(name: str) -> None:
    assert not is_plumbing(name)
    assert modules("user", name)[1:3] == [name, "user"]


@pytest.mark.parametrize("name", ["torch.nn.modules.module", "torch.utils._contextlib"])
def test_torchs_plumbing_is_skipped_above_the_call_site(name: str) -> None:
    """Who called the module, not how torch got there. At the call site itself it is kept."""
    assert modules("user", name, name, "sglang.model")[1:3] == ["sglang.model", "user"]
    (frame,) = within(name)(callers)
    assert frame.module == name
    assert "torch.nn.functional" in modules("torch.nn.functional", "sglang.model")


def test_a_call_through_wrapt_and_functools() -> None:
    """The real ones, and a wrapper of sgguard's own."""

    def passing(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    ours = FunctionType(passing.__code__, {"__name__": "sgguard.guard"})
    dispatched = functools.singledispatch(callers)  # its wrapper is a function of functools
    line = sys._getframe().f_lineno + 1
    (frame,) = wrapt.FunctionWrapper(dispatched, ours)(1)
    assert (frame.module, frame.line) == (__name__, line)


@pytest.mark.parametrize("name", [None, 3, object()])
def test_code_without_a_module(name: object) -> None:
    """``exec`` runs code whose globals name no module."""
    (frame,) = within(name)(callers)
    assert frame.module is None
    assert frame.function == "_pass_on"
    assert frame.path == __file__


def test_a_script_is_not_named_main() -> None:
    (frame,) = within("__main__")(callers)
    assert (frame.module, frame.function) == ("__main__", "_pass_on")


def test_a_method_is_named_with_its_class() -> None:
    class Model:
        def forward(self) -> tuple[Frame, ...]:
            return callers()

    (frame,) = Model().forward()
    if sys.version_info >= (3, 11):
        assert frame.function.endswith("Model.forward")
    else:
        assert frame.function.endswith("forward")


def test_no_frame_is_kept_alive() -> None:
    """A frame would keep the caller's tensors alive with it."""
    for frame in callers(10):
        assert {type(v) for v in vars(frame).values()} <= {str, int, type(None)}

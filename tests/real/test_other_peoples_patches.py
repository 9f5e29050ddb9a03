"""Mocks, spies and patches of other people on guarded methods, in every order."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import sgguard
from sgguard.runtime import runtime

pytestmark = pytest.mark.sglang

NORMALISE = {"defaults": {"action": "normalise"}}


def kv_cache() -> Any:
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    return GlmImageKVCache


def backend() -> Any:
    from sglang.multimodal_gen.runtime.server_args import Backend

    return Backend


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    found = {(c, n): vars(c)[n] for c, n in ((kv_cache(), "set_mode"), (backend(), "from_string"))}
    yield
    sgguard.uninstall()
    for (cls, name), raw in found.items():
        setattr(cls, name, raw)
    runtime.hooks._places.clear()


def test_patches_undone_after_uninstall_do_not_pile_up(recorded: Any) -> None:
    """The teardown order of fixtures; at 24 layers a cycle once took half a minute."""
    cls = kv_cache()
    original = vars(cls)["set_mode"]
    begin = time.monotonic()
    for _ in range(60):
        recorded.install()
        patch = mock.patch.object(cls, "set_mode")
        patch.start()
        sgguard.uninstall()
        patch.stop()
    assert time.monotonic() - begin < 60
    assert type(vars(cls)["set_mode"].__wrapped__) is type(original)
    recorded.install()
    cls(num_layers=1).set_mode("read")
    assert recorded.transitions() == [("none", "read")]
    sgguard.uninstall()
    assert vars(cls)["set_mode"] is original


@pytest.mark.parametrize("installed_before", [True, False])
def test_a_hook_that_hides_what_it_calls(recorded: Any, installed_before: bool) -> None:
    cls = kv_cache()
    if installed_before:
        recorded.install(NORMALISE)
    inner = cls.set_mode

    def hook(self: Any, mode: Any) -> Any:  # no functools.wraps: nothing leads to `inner`
        return inner(self, mode)

    cls.set_mode = hook
    recorded.install(NORMALISE)
    cache = cls(num_layers=1)
    cache.set_mode("READ")
    assert cache[0].mode == "read"
    assert recorded.transitions() == [("none", "read")]
    assert [a["sgguard.outcome"] for a in recorded.invalid()] == ["normalised"]
    with pytest.raises(ValueError, match="Invalid mode: recall") as caught:
        cache.set_mode("recall")
    if installed_before:  # what SGLang accepts is known from before
        assert "'write', 'read', 'skip', None" in caught.value.__notes__[0]


def test_a_mock_is_called_with_what_was_sent_and_nothing_else() -> None:
    with mock.patch.object(kv_cache(), "set_mode") as patched:
        with sgguard.install():
            kv_cache()(1).set_mode("zz")
        patched.assert_called_once_with("zz")


def spied(cls: Any, name: str, seen: list[Any]) -> None:
    raw = vars(cls)[name]
    function: Callable[..., Any] = getattr(raw, "__func__", raw)

    @functools.wraps(function)
    def spy(*args: Any) -> Any:
        seen.append(args[-1])
        return function(*args)

    setattr(cls, name, classmethod(spy) if isinstance(raw, classmethod) else spy)


def test_a_spy_sees_only_what_was_sent(recorded: Any) -> None:
    seen: list[Any] = []
    spied(backend(), "from_string", seen)
    spied(kv_cache(), "set_mode", seen)
    made: list[int] = []

    class Made(kv_cache()):  # type: ignore[misc]
        def __init__(self, num_layers: int) -> None:
            made.append(num_layers)
            super().__init__(num_layers)

    recorded.install()
    cache = Made(2)
    cache.set_mode("read")
    with pytest.raises(ValueError, match="Invalid mode") as caught:
        cache.set_mode("READ")
    assert "'write', 'read', 'skip', None" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="Invalid backend"):
        backend().from_string("trt")
    assert seen == ["read", "READ", "trt"]
    assert made == [2]


def test_a_policy_where_nothing_can_be_asked(recorded: Any) -> None:
    """A mock contradicts no policy; SGLang's own function is asked through a spy."""
    policy = {"points": {"diffusion.backend": {"action": "fallback", "fallback": "zz"}}}
    with mock.patch.object(backend(), "from_string"):
        recorded.install(policy)
        sgguard.uninstall()
    seen: list[Any] = []
    spied(backend(), "from_string", seen)
    with pytest.raises(sgguard.InvalidPolicyError, match="does not accept 'zz'"):
        recorded.install(policy)
    assert seen == []


@pytest.mark.parametrize("kind", ["mapping", "raising property", "lazy"])
def test_subclasses_that_keep_their_layers_otherwise(recorded: Any, kind: str) -> None:
    base = kv_cache()

    class Mapping(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.caches = {}

    class Layer:
        @property
        def mode(self) -> str:
            raise RuntimeError("not now")

        @mode.setter
        def mode(self, mode: str) -> None:
            self.kept = mode

    class Raising(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.caches = [Layer()]

    class Lazy(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            pass

        @property
        def caches(self) -> Any:
            raise LookupError("nothing yet")

    cache = {"mapping": Mapping, "raising property": Raising, "lazy": Lazy}[kind]()
    recorded.install()
    with pytest.raises(ValueError, match="Invalid mode: bad"):
        cache.set_mode("bad")
    if kind != "lazy":
        cache.set_mode("read")
        assert recorded.transitions() == [("unknown", "read")]
    else:
        with pytest.raises(LookupError, match="nothing yet"):  # SGLang's own loop
            cache.set_mode("read")


def test_a_class_that_cannot_be_guarded_leaves_the_rest(
    recorded: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib
    import sys

    import sglang

    (tmp_path / "sgguard_frozen.py").write_text(
        "class Frozen(type):\n"
        "    def __setattr__(cls, name, value): raise TypeError('frozen class')\n"
        "class Cache(metaclass=Frozen):\n"
        "    def set_mode(self, mode): pass\n"
    )
    monkeypatch.setattr(sglang, "__path__", [*sglang.__path__, str(tmp_path)])
    monkeypatch.setattr("sgguard.errors.reraise", False)
    importlib.import_module("sglang.sgguard_frozen")
    try:
        recorded.install(NORMALISE)
        assert kv_cache()(1).set_mode("READ") is None
        assert backend().from_string(" auto").value == "auto"
    finally:
        del sys.modules["sglang.sgguard_frozen"]


def test_little_stack_after_sglang_has_changed_the_mode(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once SGLang's call got through, nothing of the guard's may raise in its place."""
    import sys

    monkeypatch.setattr("sgguard.errors.reraise", False)
    cache = kv_cache()(num_layers=1)
    modes = ("read", "skip")
    wrong: list[int] = []

    def dive(depth: int, mode: str) -> None:
        if depth:
            dive(depth - 1, mode)
            return
        try:
            cache.set_mode(mode)
        except RecursionError:
            if cache.caches[0].mode == mode:
                wrong.append(depth)

    recorded.install()
    frame: Any = sys._getframe()
    here = 0
    while frame is not None:
        here, frame = here + 1, frame.f_back
    for room in range(3, 50):
        try:
            dive(sys.getrecursionlimit() - here - room, modes[room % 2])
        except RecursionError:
            continue
    assert wrong == []

"""Guards go on and come off SGLang's real classes, and nothing else about them changes."""

from __future__ import annotations

import copy
import importlib
import logging
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import sgguard
from sgguard.hooks import GuardWrapper

pytestmark = pytest.mark.sglang


def state(point: str, implementation: str = "sglang") -> str:
    (found,) = [
        p.state
        for p in sgguard.status().points
        if p.point == point and p.implementation == implementation
    ]
    return found


def backend() -> Any:
    from sglang.multimodal_gen.runtime.server_args import Backend

    return Backend


def kv_cache() -> Any:
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    return GlmImageKVCache


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("first", ["sgguard.auto", "sglang.multimodal_gen.runtime.server_args"])
def test_either_may_be_imported_first(first: str) -> None:
    done = run(
        f"""
        import {first}, sgguard.auto
        before = [m for m in __import__("sys").modules if m.startswith("sglang")]
        from sglang.multimodal_gen.runtime.server_args import Backend
        try:
            Backend.from_string("trt")
        except ValueError as error:
            print(error.__notes__[0].splitlines()[0])
        print([p.state for p in sgguard.status().points if p.point == "diffusion.backend"])
        print(sgguard.status().guard_errors)
        """
    )
    assert done.stdout.splitlines()[-3:] == [
        "sgguard: 'trt' was refused at diffusion.backend. SGLang accepts: 'auto', 'sglang', "
        "'diffusers'.",
        "['active']",
        "{}",
    ], done.stderr


def test_import_in_the_middle_of_sglangs_own() -> None:
    """sgguard imported by code that SGLang's import runs: classes still to come are guarded."""
    done = run(
        """
        import sys
        class Middle:
            # Runs in the midst of spec_info's import, when its class does not exist yet.
            def find_spec(self, name, path, target=None):
                if name == "sglang.srt.speculative.spec_registry":
                    import sgguard.auto
                    assert "sglang.srt.speculative.spec_info" in sys.modules
        sys.meta_path.insert(0, Middle())
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        import sgguard
        print([p.state for p in sgguard.status().points if "speculative" in p.point])
        """
    )
    assert done.stdout.splitlines()[-1:] == ["['active']"], done.stderr


def test_uninstall_restores_the_very_objects() -> None:
    classes = {backend(): ["from_string"], kv_cache(): ["set_mode", "clear"]}
    before = {(c, name): vars(c)[name] for c, names in classes.items() for name in names}
    for _ in range(2):
        handle = sgguard.install()
        assert all(type(vars(c)[name]) is GuardWrapper for c, name in before)
        handle.uninstall()
        handle.uninstall()
        assert all(vars(c)[name] is raw for (c, name), raw in before.items())
    assert not [f for f in sys.meta_path if type(f).__module__ == "sgguard.finder"]


def test_install_is_idempotent(recorded: Any) -> None:
    recorded.install()
    once = vars(backend())["from_string"]
    recorded.install()
    sgguard.install()
    importlib.import_module("sgguard.auto")
    assert vars(backend())["from_string"] is once
    assert type(once.__wrapped__) is classmethod
    backend().from_string("auto")
    assert recorded.metric("sgguard.calls") == {("accepted", "diffusion.backend"): 1}


def test_a_new_policy_replaces_the_old(recorded: Any) -> None:
    recorded.install({"points": {"diffusion.backend": {"action": "normalise"}}})
    assert backend().from_string(" auto").value == "auto"
    sgguard.install()  # no policy: the one in force stays
    assert backend().from_string(" auto").value == "auto"
    recorded.install({"points": {}})
    with pytest.raises(ValueError, match="Invalid backend"):
        backend().from_string(" auto")


def test_the_enum_is_otherwise_unchanged(recorded: Any) -> None:
    cls = backend()
    members, choices, names = list(cls), cls.choices(), dir(cls)
    recorded.install()
    assert list(cls) == members
    assert cls.choices() == choices
    assert dir(cls) == names
    assert list(cls.__members__) == [m.name for m in members]
    for member in cls:
        assert isinstance(member, cls)
        assert isinstance(member, str)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(member, protocol)) is member  # noqa: S301
        assert copy.copy(member) is member
        assert copy.deepcopy(member) is member
        assert cls.from_string(member) is member
    bound = cls.from_string
    assert pickle.loads(pickle.dumps(bound))("auto") is cls.AUTO  # noqa: S301
    assert copy.copy(bound)("auto") is cls.AUTO
    assert copy.deepcopy(bound)("auto") is cls.AUTO
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        function = pickle.loads(pickle.dumps(kv_cache().set_mode, protocol))  # noqa: S301
        cache = kv_cache()(num_layers=1)
        function(cache, "read")
        assert cache[0].mode == "read"
        method = pickle.loads(pickle.dumps(cache.set_mode, protocol))  # noqa: S301
        assert method.__self__[0].mode == "read"
        assert method.__self__ is not cache
    assert bound == cls.from_string
    assert bound.__name__ == "from_string"
    assert bound.__self__ is cls
    import inspect

    assert str(inspect.signature(bound)) == "(value: str) -> 'Backend'"
    assert inspect.ismethod(bound)


def test_a_cache_pickles_and_copies_as_before(recorded: Any) -> None:
    recorded.install()
    cache = kv_cache()(num_layers=2)
    cache.set_mode("write")
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):  # noqa: S301
        assert other[1].mode == "write"
        assert vars(other).keys() == vars(cache).keys()
        other.set_mode("read")
    assert cache[0].mode == "write"


def test_a_subclass_that_inherits_is_guarded_once(recorded: Any) -> None:
    cls = kv_cache()
    recorded.install()

    class Longer(cls):  # type: ignore[misc, valid-type]
        pass

    cache = Longer(num_layers=1)
    cache.set_mode("write")
    assert recorded.transitions() == [("none", "write")]
    sgguard.uninstall()
    assert "set_mode" not in vars(Longer)


def test_discovery_in_a_module_of_tomorrow(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file inside the real package: SGLang has no enum today that the table lacks."""
    import sglang

    (tmp_path / "sgguard_tomorrow.py").write_text(
        textwrap.dedent(
            """
            from enum import Enum
            from sglang.multimodal_gen.runtime.server_args import Backend  # not defined here

            class Precision(str, Enum):
                FP8 = "fp8"
                BF16 = "bf16"

                @classmethod
                def from_string(cls, value):
                    return cls(value)

            class Gate:
                def set_mode(self, mode):
                    if mode not in ("open", "shut"):
                        raise ValueError(f"bad gate {mode}")
                    self.state = mode
            """
        )
    )
    monkeypatch.setattr(sglang, "__path__", [*sglang.__path__, str(tmp_path)])
    ids = ["sgguard_tomorrow.Precision", "sgguard_tomorrow.Gate.mode"]
    recorded.install({"points": {name: {"action": "normalise"} for name in ids}})
    try:
        module = importlib.import_module("sglang.sgguard_tomorrow")
        assert module.__loader__ is module.__spec__.loader
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        assert [state(name) for name in ids] == ["active", "active"]
        assert module.Precision.from_string(" FP8 ") is module.Precision.FP8
        gate = module.Gate()
        gate.set_mode("open")
        gate.set_mode("open")
        gate.set_mode("SHUT")
        assert gate.state == "shut"
        assert recorded.transitions() == [("unknown", "open"), ("open", "shut")]
        assert recorded.metric("sgguard.transitions") == {
            ("unknown", "open", ids[1]): 1,
            ("open", "shut", ids[1]): 1,
        }
        with pytest.raises(ValueError, match="bad gate slam") as caught:
            gate.set_mode("slam")
        assert "'open', 'shut'" in caught.value.__notes__[0]
        # A reload makes new classes; they are guarded as well.
        module = importlib.reload(module)
        assert module.Precision.from_string("FP8") is module.Precision.FP8
        assert [state(name) for name in ids] == ["active", "active"]
    finally:
        sys.modules.pop("sglang.sgguard_tomorrow", None)


def test_reload_of_a_module_of_the_table(recorded: Any) -> None:
    from sglang.srt.layers.cp import base

    old = base.ContextParallelStrategyKind
    recorded.install({"points": {"srt.cp_strategy": {"action": "normalise"}}})
    saved = dict(vars(base))
    try:
        importlib.reload(base)
        new = base.ContextParallelStrategyKind
        assert new is not old
        assert new.from_string("ZIGZAG") is new.ZIGZAG
        assert old.from_string("ZIGZAG") is old.ZIGZAG
        assert state("srt.cp_strategy") == "active"
        sgguard.uninstall()
        for cls in (old, new):
            assert type(vars(cls)["from_string"]) is classmethod
    finally:
        vars(base).update(saved)


def test_a_lost_guard_is_noticed_and_put_back(
    recorded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang's own HookRegistry takes a guarded classmethod's ``__func__`` and drops the rest."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    cls = backend()
    original = vars(cls)["from_string"]
    seen: list[Any] = []

    def around(call: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(args[1:])
        return call(*args, **kwargs)

    recorded.install({"points": {"diffusion.backend": {"action": "normalise"}}})
    target = f"{cls.__module__}.Backend.from_string"
    try:
        HookRegistry.register(target, around, HookType.AROUND)
        HookRegistry.apply_hooks()
        replaced = vars(cls)["from_string"]
        assert type(replaced) is classmethod
        with caplog.at_level(logging.WARNING, "sgguard"):
            assert state("diffusion.backend") == "lost"
            assert recorded.metric("sgguard.points")["diffusion.backend", "lost"] == 1
            assert state("diffusion.backend") == "lost"
        assert [r.getMessage() for r in caplog.records] == [
            "sgguard: the guard of diffusion.backend at "
            f"{cls.__module__}:Backend.from_string was lost: something replaced it. "
            "sgguard.install() puts it back."
        ]
        sgguard.install()
        assert state("diffusion.backend") == "active"
        assert cls.from_string(" AUTO") is cls.AUTO  # refused below the hook, repaired above
        assert seen == [(" AUTO",), ("AUTO",)]
        sgguard.uninstall()
        assert vars(cls)["from_string"] is replaced
    finally:
        HookRegistry.reset()
        cls.from_string = original


def test_a_hook_around_the_guard_keeps_it(recorded: Any) -> None:
    """For a plain method HookRegistry wraps what it finds, so the guard stays on below it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    cls = kv_cache()
    original = {name: vars(cls)[name] for name in ("set_mode", "clear")}
    recorded.install({"points": {"glm_image.kv_cache.mode": {"action": "normalise"}}})
    try:
        HookRegistry.register(
            f"{cls.__module__}.GlmImageKVCache.set_mode",
            lambda call, *args, **kwargs: call(*args, **kwargs),
            HookType.AROUND,
        )
        HookRegistry.apply_hooks()
        assert state("glm_image.kv_cache.mode") == "active"
        cache = cls(num_layers=1)
        cache.set_mode("READ")
        assert recorded.transitions() == [("none", "read")]
        # It cannot be taken off from below somebody's hook: it passes calls straight on.
        sgguard.uninstall()
        with pytest.raises(ValueError, match="Invalid mode"):
            cache.set_mode("READ")
        assert len(recorded.invalid()) == 1
        # And it comes back to life, without a second one around it.
        recorded.install({"points": {"glm_image.kv_cache.mode": {"action": "normalise"}}})
        cache.set_mode("SKIP")
        assert recorded.transitions() == [("none", "read"), ("read", "skip")]
    finally:
        sgguard.uninstall()
        HookRegistry.reset()
        for name, raw in original.items():
            setattr(cls, name, raw)
        from sgguard.runtime import runtime

        runtime.hooks._places.clear()


def test_someone_elses_wrapt_wrapper_outside_and_inside(recorded: Any) -> None:
    import wrapt

    cls = backend()
    original = vars(cls)["from_string"]
    calls: list[str] = []

    def inner(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append("inner")
        return wrapped(*args, **kwargs)

    def outer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append("outer")
        return wrapped(*args, **kwargs)

    try:
        wrapt.wrap_function_wrapper(cls, "from_string", inner)
        inside = vars(cls)["from_string"]
        recorded.install({"points": {"diffusion.backend": {"action": "normalise"}}})
        wrapt.wrap_function_wrapper(cls, "from_string", outer)
        assert state("diffusion.backend") == "active"
        assert cls.from_string("SGLang ") is cls.SGLANG
        assert calls == ["outer", "inner", "inner"]
        (attributes,) = recorded.invalid()
        assert attributes["code.function.name"].startswith("test_hooks.")
        cls.from_string = vars(cls)["from_string"].__wrapped__  # the outer one goes first
        sgguard.uninstall()
        assert vars(cls)["from_string"] is inside
    finally:
        cls.from_string = original


def test_threads_lose_no_count(recorded: Any) -> None:
    recorded.install()
    cls = kv_cache()
    shared = cls(num_layers=3)
    rounds, threads = 2000, 8
    barrier = threading.Barrier(threads)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        own = cls(num_layers=3)
        barrier.wait()
        try:
            for i in range(rounds):
                own.set_mode(("read", "skip")[i % 2])
                shared.set_mode(("write", "read", "skip", None)[(i + number) % 4])
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []
    point = "glm_image.kv_cache.mode"
    assert recorded.metric("sgguard.calls") == {("accepted", point): 2 * rounds * threads}
    own = {("read", "skip"): rounds // 2 * threads, ("skip", "read"): (rounds // 2 - 1) * threads}
    moved = recorded.metric("sgguard.transitions")
    for (before, after), count in own.items():
        assert moved[before, after, point] >= count  # the shared cache adds its own
    assert sum(moved.values()) == len(recorded.transitions())


def test_install_and_uninstall_while_threads_call(recorded: Any) -> None:
    cls = backend()
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            try:
                assert cls.from_string("AUTO") is cls.AUTO
            except BaseException as error:
                failed.append(error)
                return

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(100):
        recorded.install()
        sgguard.uninstall()
    stop.set()
    for worker in workers:
        worker.join()
    assert failed == []
    assert type(vars(cls)["from_string"]) is classmethod

"""Whatever goes wrong around the guard, SGLang's call ends as it would have without it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
from typing import Any
from unittest import mock

import pytest

import sgguard
from sgguard import errors

pytestmark = pytest.mark.sglang

POINT = "glm_image.kv_cache.mode"
FALLBACK = {"points": {POINT: {"action": "fallback", "fallback": "skip"}}}


def new_cache() -> Any:
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    return GlmImageKVCache(num_layers=2)


def backend() -> Any:
    from sglang.multimodal_gen.runtime.server_args import Backend

    return Backend


@pytest.fixture
def failing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "reraise", False)


class Broken:
    """A value all of whose own code raises."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("the value's own code")

    __repr__ = __str__ = __eq__ = __bool__ = __len__ = _fail  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def test_a_value_whose_code_raises(recorded: Any) -> None:
    """SGLang compares it, so its error is what comes out, and it is no refusal."""
    recorded.install(FALLBACK)
    with pytest.raises(RuntimeError, match="own code"):
        new_cache().set_mode(Broken())
    with pytest.raises(AttributeError, match="lower"):
        backend().from_string(Broken())
    (attributes,) = recorded.invalid()
    assert "raised RuntimeError" in attributes["sgguard.value.received"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_the_guards_to_stop_passes(recorded: Any, kind: type[BaseException]) -> None:
    class Interrupting:
        def __repr__(self) -> str:
            raise kind

    recorded.install()
    with pytest.raises(kind):
        new_cache().set_mode(Interrupting())


@pytest.mark.usefixtures("failing_open")
@pytest.mark.parametrize("what", ["tracer", "log", "policy", "note", "clock", "callers"])
def test_a_failure_at_every_seam(recorded: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgguard.runtime import runtime

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError(what)

    recorded.install(FALLBACK)
    cache = new_cache()
    cache.set_mode("write")
    before = sum(errors.counts().values())
    target = {
        "tracer": (runtime.recorder._tracer, "start_span"),
        "log": (logging.getLogger("sgguard"), "log"),
        "policy": (runtime.book, "choose"),
        "note": (sys.modules["sgguard.note"], "compose"),
        "clock": (sys.modules["sgguard.counts"].time, "monotonic"),
        "callers": (sys.modules["sgguard.guard"], "callers"),
    }[what]
    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        cache.set_mode("read")
        assert cache[0].mode == "read"
        with pytest.raises(ValueError, match="Invalid backend: trt"):
            backend().from_string("trt")
        if what in ("policy", "callers"):  # no decision could be made: as without the guard
            with pytest.raises(ValueError, match="Invalid mode: recall"):
                cache.set_mode("recall")
        else:
            cache.set_mode("recall")
            assert cache[0].mode == "skip"
    assert sum(errors.counts().values()) > before
    cache.set_mode("write")  # and all is well again
    assert recorded.transitions()[-1][1] == "write"


def test_providers_that_fail(recorded: Any, failing_open: None) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise OSError("no collector")

    failing: Any = Failing()
    before = errors.counts()["telemetry"]
    with sgguard.install(
        "inline:{version: 1, defaults: {action: normalise}}",
        tracer_provider=failing,
        meter_provider=failing,
    ):
        cache = new_cache()
        cache.set_mode("READ")
        cache.set_mode("skip")
        assert cache[0].mode == "skip"
    assert errors.counts()["telemetry"] > before


def test_a_broken_log_handler(
    recorded: Any, failing_open: None, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("disk full")

    handler = Handler()
    logger = logging.getLogger("sgguard")
    logger.addHandler(handler)
    try:
        recorded.install(FALLBACK)
        cache = new_cache()
        cache.set_mode("recall")
        assert cache[0].mode == "skip"
        with pytest.raises(ValueError, match="Invalid backend"):
            backend().from_string("trt")
    finally:
        logger.removeHandler(handler)


def test_little_stack_left(recorded: Any, failing_open: None) -> None:
    """Near the recursion limit the guard may find out nothing, but SGLang's error stays."""
    recorded.install()
    cache = new_cache()
    outcomes = set()

    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
            return
        try:
            cache.set_mode("READ")
        except (ValueError, RecursionError) as error:
            outcomes.add(type(error))

    limit = sys.getrecursionlimit()
    for room in range(2, 60):
        here = len(list(_frames()))
        try:
            dive(limit - here - room)
        except RecursionError:
            continue  # not even the test's own frames fit
    assert ValueError in outcomes


def _frames() -> Any:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def test_mock_patch_while_installed(recorded: Any) -> None:
    """Tests of other people patch these methods; what they put back is the guard."""
    cls = backend()
    original = vars(cls)["from_string"]
    recorded.install()
    guarded = vars(cls)["from_string"]
    with mock.patch.object(cls, "from_string", return_value="patched"):
        assert cls.from_string("trt") == "patched"
    assert vars(cls)["from_string"] is guarded
    with mock.patch.object(cls, "from_string"):
        sgguard.uninstall()
    # The patch put the guard back after uninstall: it passes calls straight on.
    seen = len(recorded.spans())
    with pytest.raises(ValueError, match="Invalid backend"):
        cls.from_string("trt")
    assert len(recorded.spans()) == seen
    cls.from_string = original


def test_asyncio_tasks(recorded: Any) -> None:
    recorded.install(FALLBACK)

    async def request(number: int) -> str:
        cache = new_cache()
        for mode in ("write", "READ", "recall"):
            cache.set_mode(mode)
            await asyncio.sleep(0)
        return str(cache[0].mode)

    async def main() -> list[str]:
        return await asyncio.gather(*(request(n) for n in range(20)))

    assert set(asyncio.run(main())) == {"skip"}
    assert recorded.metric("sgguard.calls") == {
        ("accepted", POINT): 20,
        ("normalised", POINT): 20,
        ("fell_back", POINT): 20,
    }


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )


def test_at_exit_and_optimised() -> None:
    """A guarded call while the interpreter shuts down."""
    done = run(
        """
        import atexit, sgguard.auto
        from sglang.multimodal_gen.runtime.server_args import Backend

        class Late:
            # Bound early: at this hour the module's own names may be gone.
            def __del__(self, Backend=Backend, print=print):
                try:
                    Backend.from_string("trt")
                except ValueError:
                    print("ValueError", flush=True)

        late = Late()
        @atexit.register
        def last():
            print(Backend.from_string(" AUTO").value, flush=True)
        """,
        SGGUARD_ACTION="normalise",
        PYTHONOPTIMIZE="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["auto", "ValueError"]
    assert "internal error" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_guarded() -> None:
    """Also when another thread is in the middle of a guarded call as the process forks."""
    done = run(
        """
        import os, sys, threading, sgguard
        sgguard.install("inline:{version: 1, defaults: {action: normalise}}")
        from sglang.multimodal_gen.runtime.server_args import Backend
        import logging
        logging.getLogger("sgguard").setLevel(logging.CRITICAL)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                Backend.from_string(" AUTO")
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        failed = 0
        for _ in range(30):
            child = os.fork()
            if child == 0:
                ok = Backend.from_string(" SGLang").value == "sglang"
                ok = ok and sgguard.status().points[0].state == "active"
                os._exit(0 if ok else 1)
            failed += os.waitpid(child, 0)[1] != 0
        stop.set()
        print("failed", failed)
        """
    )
    assert done.stdout.splitlines()[-1:] == ["failed 0"], done.stderr


def test_a_spawned_child_is_guarded_by_the_import(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import sgguard.auto

            def work(queue):
                from sglang.multimodal_gen.runtime.server_args import Backend
                queue.put(Backend.from_string(" AUTO").value)

            if __name__ == "__main__":
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                print(queue.get(timeout=200))
                child.join()
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "SGGUARD_ACTION": "normalise"},
    )
    assert done.stdout.splitlines()[-1:] == ["auto"], done.stderr


def test_two_handles_and_threads_that_install(recorded: Any) -> None:
    handles = []
    workers = [threading.Thread(target=lambda: handles.append(sgguard.install())) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert type(vars(backend())["from_string"].__wrapped__) is classmethod
    with handles[0], handles[1]:
        assert sgguard.status().installed
    assert not sgguard.status().installed
    assert type(vars(backend())["from_string"]) is classmethod

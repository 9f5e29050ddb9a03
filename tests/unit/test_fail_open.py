"""An error inside sgguard is counted, logged once and kept away from SGLang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from sgguard import errors
from sgguard.errors import STAGES, Stage, fail_open


@pytest.fixture(autouse=True)
def _as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """conftest lets internal errors out; here they are kept in. Counts begin at nothing."""
    monkeypatch.setattr(errors, "reraise", False)
    monkeypatch.setattr(errors, "_counts", dict.fromkeys(STAGES, 0))


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """sgguard's logger; handlers that a test adds are taken off again."""
    found = logging.getLogger("sgguard")
    before = list(found.handlers)
    yield found
    found.handlers[:] = before


def fail(stage: Stage, error: BaseException) -> None:
    with fail_open(stage):
        raise error


@pytest.mark.parametrize("stage", STAGES)
def test_counted_and_swallowed(stage: Stage) -> None:
    """The code after the block runs, and only that stage's count changes."""
    for _ in range(3):
        fail(stage, RuntimeError("x"))
    assert errors.counts() == {**dict.fromkeys(STAGES, 0), stage: 3}


def test_nothing_happens_where_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    with fail_open("policy"):
        pass
    assert not any(errors.counts().values())
    assert caplog.records == []


def test_logged_once_per_stage(caplog: pytest.LogCaptureFixture) -> None:
    """With the traceback, which is what someone has to fix."""
    for _ in range(5):
        fail("repair", RuntimeError("first"))
        fail("telemetry", KeyError("second"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("sgguard: internal error (repair)")
    assert second.startswith("sgguard: internal error (telemetry)")
    assert caplog.records[0].exc_info is not None
    assert "RuntimeError: first" in caplog.text
    assert "in fail" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_stopping_the_program_is_not_held_up(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    error = kind()
    with pytest.raises(kind) as caught:
        fail("hook", error)
    assert caught.value is error
    assert not any(errors.counts().values())
    assert caplog.records == []


class Broken(logging.Handler):
    """A log handler that fails, as one does whose disk is full."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += 1
        raise self.error


def test_a_broken_log_handler_is_survived(logger: logging.Logger) -> None:
    handler = Broken(OSError("no space left on device"))
    logger.addHandler(handler)
    fail("note", RuntimeError())
    fail("note", RuntimeError())
    assert handler.seen == 1
    assert errors.counts()["note"] == 2


def test_a_log_handler_may_stop_the_program(logger: logging.Logger) -> None:
    logger.addHandler(Broken(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fail("note", RuntimeError())
    assert errors.counts()["note"] == 1


def test_an_error_that_cannot_be_printed(logger: logging.Logger) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    fail("status", MuteError())
    assert errors.counts()["status"] == 1


def test_blocks_within_blocks() -> None:
    """The inner block keeps its error; the outer one goes on."""
    reached = False
    with fail_open("repair"):
        fail("note", RuntimeError())
        reached = True
    assert reached
    assert errors.counts()["note"] == 1
    assert errors.counts()["repair"] == 0


def test_a_return_out_of_a_block() -> None:
    def inner() -> str:
        with fail_open("repair"):
            return "given"
        return "swallowed"

    assert inner() == "given"


def test_counts_are_a_copy() -> None:
    fail("hook", RuntimeError())
    errors.counts()["hook"] = 99
    assert errors.counts()["hook"] == 1


def test_between_threads(caplog: pytest.LogCaptureFixture) -> None:
    """No count is lost, and one of all threads logs."""

    def work() -> None:
        for _ in range(500):
            fail("transition", RuntimeError())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors.counts()["transition"] == 4_000
    assert len(caplog.records) == 1


def test_in_tests_errors_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What conftest sets: no test passes over an internal error unseen."""
    monkeypatch.setattr(errors, "reraise", True)
    with pytest.raises(RuntimeError, match="seen"):
        fail("hook", RuntimeError("seen"))
    assert errors.counts()["hook"] == 1

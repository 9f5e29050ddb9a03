"""The watcher of a policy file: what it notices, and what it never does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgguard.errors import PolicyError
from sgguard.reload import Watcher

WAIT = 8.0


class Log:
    """What a watcher handed on."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[PolicyError] = []


def wait_for(condition: Callable[[], object], seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


@pytest.fixture(params=["watchfiles", "polling"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "watchfiles":
        pytest.importorskip("watchfiles", reason="watchfiles is not installed here")
    else:
        monkeypatch.setitem(sys.modules, "watchfiles", None)  # importing it fails
    return str(request.param)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def watch(how: str, log: Log) -> Iterator[Callable[[Path], Watcher]]:
    made: list[Watcher] = []

    def start(path: Path) -> Watcher:
        watcher = Watcher(
            str(path), path.read_text(), log.texts.append, log.errors.append, interval=0.1
        )
        watcher.start()
        made.append(watcher)
        return watcher

    yield start
    for watcher in made:
        watcher.stop()
        assert watcher._thread is not None
        assert not watcher._thread.is_alive()


def test_written_in_place(watch: Callable[[Path], Watcher], log: Log, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    watch(path)
    for text in ("two", "six", "two"):  # of one length: size alone would not tell
        path.write_text(text)
        wait_for(lambda text=text: log.texts and log.texts[-1] == text)
    assert log.errors == []


def test_replaced_by_rename(watch: Callable[[Path], Watcher], log: Log, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    watch(path)
    for number in range(5):
        new = tmp_path / "p.yaml.new"
        new.write_text(f"text {number}")
        new.replace(path)
        wait_for(lambda n=number: log.texts and log.texts[-1] == f"text {n}")
    assert log.texts == [f"text {n}" for n in range(5)]


def test_kubernetes_config_map(watch: Callable[[Path], Watcher], log: Log, tmp_path: Path) -> None:
    """p.yaml -> ..data/p.yaml, and ..data -> a directory that is swapped as a whole."""

    def publish(version: int) -> None:
        directory = tmp_path / f"..version{version}"
        directory.mkdir()
        (directory / "p.yaml").write_text(f"text {version}")
        link = tmp_path / "..data_tmp"
        link.symlink_to(directory.name)
        link.replace(tmp_path / "..data")

    publish(1)
    path = tmp_path / "p.yaml"
    path.symlink_to("..data/p.yaml")
    watch(path)
    for version in (2, 3):
        publish(version)
        wait_for(lambda v=version: log.texts and log.texts[-1] == f"text {v}")
    assert log.texts == ["text 2", "text 3"]


def test_deleted_and_back(watch: Callable[[Path], Watcher], log: Log, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    watch(path)
    path.unlink()
    time.sleep(0.5)
    assert (log.texts, log.errors) == ([], [])
    path.write_text("two")
    wait_for(lambda: log.texts[-1:] == ["two"])


def test_unreadable(watch: Callable[[Path], Watcher], log: Log, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    watch(path)
    path.write_bytes(b"\xff\xfe")
    wait_for(lambda: log.errors)
    time.sleep(0.4)
    assert len(log.errors) == 1, "said once, not at every look"
    assert "not UTF-8" in str(log.errors[0])
    path.write_text("one")
    wait_for(lambda: log.texts[-1:] == ["one"])


def test_a_failing_callback_does_not_end_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgguard.errors.reraise", False)
    path = tmp_path / "p.yaml"
    path.write_text("one")
    seen: list[str] = []

    def changed(text: str) -> None:
        seen.append(text)
        raise RuntimeError("callback")

    watcher = Watcher(str(path), "one", changed, lambda _: None, interval=0.1)
    watcher.start()
    try:
        for text in ("two", "three"):
            path.write_text(text)
            wait_for(lambda text=text: seen and seen[-1] == text)
    finally:
        watcher.stop()


def test_one_thread_however_often_it_is_started(
    watch: Callable[[Path], Watcher], tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    watcher = watch(path)
    for _ in range(10):
        watcher.start()
    assert [t.name for t in threading.enumerate()].count("sgguard-policy") == 1
    assert watcher._thread is not None
    assert watcher._thread.daemon


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_watches_on_first_use(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("one")
    code = f"""
    import os, sys, threading, time
    from sgguard.reload import Watcher
    seen = []
    watcher = Watcher({str(path)!r}, "one", seen.append, print, interval=0.1)
    watcher.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        names = [t.name for t in threading.enumerate()]
        assert "sgguard-policy" not in names, names
        watcher.start()
        open({str(path)!r}, "w").write("two")
        end = time.monotonic() + 8
        while seen[-1:] != ["two"] and time.monotonic() < end:
            time.sleep(0.01)
        os._exit(0 if seen[-1:] == ["two"] else 1)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_it_does_not_hold_up_the_exit(how: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\n")
    code = f"""
    import sys
    if {how!r} == "polling":
        sys.modules["watchfiles"] = None
    import time, sgguard
    sgguard.install({str(path)!r})
    time.sleep(0.3)
    print(time.time())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert time.time() - float(done.stdout) < 3
    assert done.stderr == ""

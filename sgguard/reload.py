"""Watching a policy file while the process runs.

A daemon thread looks at the file and hands its text on when it has changed. It is woken by
``watchfiles`` where that is installed (SGLang has it) and otherwise looks once a second. What
counts is always what the file holds when it is read, so a file replaced by rename, a
Kubernetes ConfigMap (a symbolic link to a directory that is swapped) and a file edited in
place are one case.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from sgguard._text import read_text
from sgguard.errors import PolicyError, fail_open

Signature = tuple[int, int, int, int, int]

SETTLE: Final = 0.1
"""Seconds for which a file that is written in place is left alone before it is read."""

INTERVAL: Final = 1.0
"""Seconds between two looks at the file where nothing wakes the watcher."""


class Watcher:
    """Watches one file.

    Args:
        path: the policy file.
        text: what it held when it was last read.
        changed: called with a new text, on the watcher's thread.
        unreadable: called with the error when it is there and cannot be read.
        interval: seconds between two looks.
    """

    def __init__(
        self,
        path: str,
        text: str,
        changed: Callable[[str], None],
        unreadable: Callable[[PolicyError], None],
        interval: float = INTERVAL,
    ) -> None:
        self.path = os.path.abspath(path)
        self._name = path
        self._changed = changed
        self._unreadable = unreadable
        self._interval = interval
        self._last: object = text
        self._signature: Signature | None = None
        self._inode: tuple[int, int] | None = None
        self._stop = threading.Event()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self) -> None:
        """Start watching in this process, if that is not going on already.

        A forked child has none of its parent's threads: the first call there starts one.
        """
        if self._pid == os.getpid() or self._stop.is_set():
            return
        if self._pid:  # in a forked child the parent's thread may have held the lock
            self._start_lock = threading.Lock()
            self._stop = threading.Event()
        with self._start_lock:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="sgguard-policy", daemon=True
            )
            self._thread.start()
            atexit.register(self._stop.set)

    def stop(self) -> None:
        """Stop watching. Waits for a look that is under way, but not for ever."""
        self._stop.set()
        atexit.unregister(self._stop.set)
        thread = self._thread
        alive = thread is not None and self._pid == os.getpid()
        if thread is not None and alive and thread is not threading.current_thread():
            thread.join(timeout=2 * self._interval)

    def _run(self, stop: threading.Event) -> None:
        wait = self._waiter(stop)
        while not stop.is_set():
            with fail_open("policy"):
                self.look()
            wait()

    def _waiter(self, stop: threading.Event) -> Callable[[], object]:
        def sleep() -> object:
            return stop.wait(self._interval)

        try:
            from watchfiles import watch
        except ImportError:
            return sleep
        # The directory is watched, not the file: a rename, and Kubernetes' swapped link, are
        # events of the directory. An event is only a reason to look.
        try:
            events = watch(
                os.path.dirname(self.path),
                watch_filter=None,
                debounce=50,
                step=20,
                stop_event=stop,
                rust_timeout=int(self._interval * 1000),
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
            )
        except Exception:  # noqa: BLE001 - no inotify handles left, no such directory
            return sleep

        def wake() -> object:
            try:
                return next(events, None) or stop.wait(0)
            except Exception:  # noqa: BLE001
                return sleep()

        return wake

    def look(self) -> None:
        """Read the file if it may have changed, and hand on what is new."""
        signature = self._sign()
        if signature is None or signature == self._signature:
            return  # deleted, or between two renames: the last policy stays
        inode, self._inode = self._inode, signature[:2]
        if inode == signature[:2] and _age(signature) < SETTLE:
            # Written in place, not replaced: somebody may be in the middle of it.
            self._stop.wait(SETTLE)
        text: object = None
        error: PolicyError | None = None
        try:
            text = read_text(self._name if os.path.isabs(self._name) else self.path)
        except PolicyError as problem:
            error, text = problem, str(problem)
        if self._sign() != signature:
            return  # it changed while it was read: the next look has it whole
        # A file written twice within one tick of the clock keeps its time: the signature of
        # a young file is not trusted, and the file is read again at the next look.
        self._signature = None if _age(signature) < 2.0 else signature
        if text == self._last:
            return
        self._last = text
        if error is not None:
            self._unreadable(error)
        else:
            self._changed(str(text))

    def _sign(self) -> Signature | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        # ctime as well: the time of a change can be set, the time of that cannot.
        return (
            found.st_dev,
            found.st_ino,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_size,
        )


def _age(signature: Signature) -> float:
    return abs(time.time() - signature[3] / 1e9)

"""Counts: nothing is lost between threads, and reading changes nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from sgguard.counts import Counter, Counts

THREADS = 8
ADDS = 100_000


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns far more often than usual: a lost addition would show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(*tasks: Callable[[], None]) -> None:
    """Run tasks in threads that start together; an error in one of them fails the test."""
    barrier = threading.Barrier(len(tasks))
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            barrier.wait()
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.usefixtures("_often")
def test_no_addition_is_lost() -> None:
    counter = Counter()

    def add() -> None:
        for _ in range(ADDS):
            counter.add()

    at_once(*[add] * THREADS)
    assert counter.value() == THREADS * ADDS


@pytest.mark.usefixtures("_often")
def test_reading_while_others_add() -> None:
    """Never back, never more than was added, and what was added is all there at the end."""
    counter = Counter()
    seen: list[list[int]] = [[], []]
    adding = threading.Event()

    def add() -> None:
        for _ in range(20_000):
            counter.add()
        adding.set()

    def read(values: list[int]) -> Callable[[], None]:
        def task() -> None:
            while not adding.is_set() or len(values) < 100:
                values.append(counter.value())

        return task

    at_once(add, add, read(seen[0]), read(seen[1]))
    for values in seen:
        assert values == sorted(values)
        assert values[0] >= 0
        assert values[-1] <= 40_000
    assert counter.value() == 40_000


def test_reading_changes_nothing() -> None:
    counter = Counter()
    assert [counter.value() for _ in range(3)] == [0, 0, 0]
    for expected in range(1, 4):
        counter.add()
        assert [counter.value() for _ in range(expected)] == [expected] * expected


def test_counts_by_outcome() -> None:
    counts = Counts()
    assert counts.calls() == {}
    for _ in range(3):
        counts.accepted.add()
    counts.expected.add()
    counts.add_invalid("refused", "observe")
    counts.add_invalid("refused", "fallback")
    counts.add_invalid("normalised", "fallback")
    expected = {"accepted": 3, "expected": 1, "refused": 2, "normalised": 1}
    assert counts.calls() == expected
    assert counts.calls() == expected  # reading changes nothing here either
    assert counts.invalid() == {
        ("refused", "observe"): 1,
        ("refused", "fallback"): 1,
        ("normalised", "fallback"): 1,
    }


def test_what_is_given_out_is_a_copy() -> None:
    counts = Counts()
    counts.add_invalid("refused", "observe")
    counts.add_transition("read", "skip")
    counts.invalid().clear()
    counts.transitions().clear()
    counts.calls().clear()
    assert counts.invalid() == {("refused", "observe"): 1}
    assert counts.transitions() == {("read", "skip"): 1}
    assert counts.calls() == {"refused": 1}


@pytest.mark.usefixtures("_often")
def test_counts_between_threads() -> None:
    counts = Counts()

    def add() -> None:
        for _ in range(5_000):
            counts.add_invalid("refused", "observe")
            counts.add_transition("read", "skip")
            counts.add_transition("skip", "read")

    at_once(*[add] * THREADS)
    total = THREADS * 5_000
    assert counts.invalid() == {("refused", "observe"): total}
    assert counts.transitions() == {("read", "skip"): total, ("skip", "read"): total}

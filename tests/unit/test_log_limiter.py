"""One log line for each kind of trouble and minute; the rest are counted; memory is bounded."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from sgguard.telemetry import LogLimiter


def test_one_line_per_interval() -> None:
    limiter = LogLimiter(interval=60)
    assert limiter.admit("a", now=0) == 0
    assert limiter.admit("a", now=0) is None
    assert limiter.admit("a", now=59.9) is None
    assert limiter.admit("a", now=60) == 2
    assert limiter.admit("a", now=61) is None
    assert limiter.admit("a", now=1000) == 1
    assert limiter.admit("a", now=2000) == 0


def test_keys_do_not_hold_each_other_back() -> None:
    limiter = LogLimiter(interval=60)
    assert [limiter.admit(key, now=5) for key in ("a", "b", ("a",), None)] == [0, 0, 0, 0]
    assert limiter.admit("a", now=6) is None
    assert limiter.admit("b", now=65) == 0


def test_the_clock_of_its_own() -> None:
    limiter = LogLimiter(interval=0.05)
    assert limiter.admit("a") == 0
    assert limiter.admit("a") is None
    time.sleep(0.06)
    assert limiter.admit("a") == 1


def test_memory_is_bounded() -> None:
    """A client that sends a new value each time cannot fill the memory."""
    limiter = LogLimiter(size=100)
    for i in range(20_000):
        assert limiter.admit(i, now=0) == 0
        assert len(limiter._seen) <= 100
    assert len(limiter._seen) == 100


def test_the_one_unused_longest_is_forgotten_first() -> None:
    limiter = LogLimiter(interval=60, size=2)
    limiter.admit("a", now=0)
    limiter.admit("b", now=1)
    assert limiter.admit("a", now=2) is None  # held back, and used all the same
    assert limiter.admit("c", now=3) == 0  # b goes
    assert limiter.admit("a", now=4) is None
    assert limiter.admit("b", now=5) == 0


def test_between_threads() -> None:
    """One of all threads may log; no line is missing from the count of those held back."""
    limiter = LogLimiter(interval=60)
    admitted: list[int | None] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        mine = [limiter.admit("a", now=1) for _ in range(2_000)]
        admitted.extend(found for found in mine if found is not None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted == [0]
    assert limiter.admit("a", now=61) == 8 * 2_000 - 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 50)), max_size=40))
def test_every_line_is_logged_or_counted(events: list[tuple[str, float]]) -> None:
    """Lines admitted plus lines reported as held back are all the lines there were."""
    limiter = LogLimiter(interval=10)
    now, admitted, held = 0.0, 0, 0
    last: dict[str, float] = {}
    for key, gap in events:
        now += gap
        found = limiter.admit(key, now)
        assert (found is None) is (key in last and now - last[key] < 10)
        if found is not None:
            last[key] = now
            admitted += 1
            held += found
    for key in last:
        held += limiter.admit(key, now + 11) or 0  # past the interval, rounding or not
    assert admitted + held == len(events)

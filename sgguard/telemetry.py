"""Decisions and transitions become spans, metrics and log lines.

Through the OpenTelemetry API only: with no SDK set up, everything here is a no-op. Names and
attributes are described in the README ("Telemetry"). Metric attributes come from closed sets;
a received value is on spans and in the log only.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Status, StatusCode, TracerProvider

from sgguard import errors
from sgguard._version import __version__
from sgguard.callsite import Frame
from sgguard.catalogue import UNSET
from sgguard.compat.fork import renew_after_fork
from sgguard.counts import Counts
from sgguard.decision import Decision, Transition
from sgguard.errors import fail_open
from sgguard.guard import UNKNOWN_MODE
from sgguard.values import cut, escape, plain, show

logger = logging.getLogger("sgguard")

SCOPE: Final = "sgguard"
SPAN_TRANSITION: Final = "sglang.kv_cache.set_mode"
SPAN_INVALID: Final = "sgguard.invalid_value"
LOG_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
OTHER: Final = "_OTHER"
"""Stands for a value outside the closed set, as in OpenTelemetry's semantic conventions."""

Attributes = dict[str, Any]


class LogLimiter:
    """Lets one line per key through per interval and counts the rest. Bounded in memory.

    Args:
        interval: seconds between two lines of one key.
        size: how many keys are remembered; the one unused longest is forgotten first.
    """

    def __init__(self, interval: float = 60.0, size: int = 1024) -> None:
        self.interval = interval
        self.size = size
        self._seen: OrderedDict[object, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        self._lock = threading.Lock()

    def admit(self, key: object, now: float | None = None) -> int | None:
        """``None`` to keep quiet, else how many lines were held back since the last one."""
        now = time.monotonic() if now is None else now
        with self._lock:
            last, held = self._seen.get(key, (None, 0))
            if last is not None and now - last < self.interval:
                self._seen[key] = (last, held + 1)
                self._seen.move_to_end(key)
                return None
            self._seen[key] = (now, 0)
            self._seen.move_to_end(key)
            while len(self._seen) > self.size:
                self._seen.popitem(last=False)
            return held


class Source(Protocol):
    """What the observable instruments read when a reader collects."""

    def counts(self) -> Iterable[tuple[str, Counts]]:
        """Each point's id and counts, once for each of its implementations."""
        ...

    def states(self) -> Mapping[tuple[str, str], int]:
        """How many guarded places each (point, state) has."""
        ...

    def policy(self) -> tuple[str, str]:
        """The fingerprint of the policy in force and where it came from."""
        ...

    def reloads(self) -> Mapping[str, int]:
        """Reloads of the policy file by result, ``applied`` or ``invalid``."""
        ...


class Telemetry:
    """The recorder behind every guard of one installation.

    Args:
        source: read by the observable instruments.
        tracer_provider: OpenTelemetry's; the global one if ``None``.
        meter_provider: OpenTelemetry's; the global one if ``None``.
    """

    def __init__(
        self,
        source: Source,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.source = source
        self.limiter = LogLimiter()
        # A provider that fails costs its own half of the telemetry, not the guard.
        self._tracer: trace.Tracer = trace.NoOpTracer()
        with fail_open("telemetry"):
            self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        self._duration: metrics.Histogram = metrics.NoOpHistogram("sgguard.mode.duration")
        with fail_open("telemetry"):
            self._duration = _instruments(meter_provider, self)

    # The recorder's side (sgguard.guard.Recorder).

    def transition(self, transition: Transition) -> None:
        """Record a change of mode: a count, the time the old mode was on, a span."""
        with fail_open("telemetry"):
            before, after = mode_name(transition.before), mode_name(transition.after)
            point = transition.point.id
            start, end = (name if name in transition.modes else OTHER for name in (before, after))
            transition.counts.add_transition(start, end)
            if transition.seconds is not None and transition.before is not None:
                self._duration.record(
                    transition.seconds, {"sgguard.point": point, "sgguard.mode.from": start}
                )
            if transition.book.spans(point) != "transitions":
                return
            length = transition.book.max_value_length
            attributes: Attributes = {
                "sgguard.point": point,
                "sgguard.implementation": transition.implementation,
                "sgguard.method": transition.method,
                "sgguard.mode.from": show_mode(before, length),
                "sgguard.mode.to": show_mode(after, length),
                **self._call_site(transition.frames),
            }
            if transition.seconds is not None:
                attributes["sgguard.mode.seconds"] = transition.seconds
            self._tracer.start_span(SPAN_TRANSITION, attributes=attributes).end()

    def invalid(self, decision: Decision, note: str = "") -> None:
        """Record a value that SGLang refused: a span and a log line, with the note if given.

        The guard has counted it already. The span is an error only if the value stayed
        refused.
        """
        with fail_open("telemetry"):
            self._invalid_span(decision)
        with fail_open("telemetry"):
            self._invalid_log(decision, note)

    def _invalid_span(self, decision: Decision) -> None:
        if decision.rule.spans == "none":
            return
        length = decision.book.max_value_length
        attributes: Attributes = {
            "sgguard.point": decision.point.id,
            "sgguard.implementation": decision.implementation,
            "sgguard.method": decision.method,
            "sgguard.action": decision.rule.action,
            "sgguard.outcome": decision.outcome,
            "sgguard.value.received": show(decision.received, length),
            "sgguard.policy.fingerprint": decision.book.fingerprint,
            **self._call_site(decision.frames),
        }
        if decision.applied is not UNSET:
            attributes["sgguard.value.applied"] = show(decision.applied, length)
        if decision.step is not None:
            attributes["sgguard.step"] = decision.step
        if decision.frames:
            attributes["code.stacktrace"] = "\n".join(
                f'File "{escape(f.path)}", line {f.line}, in {escape(f.function)}'
                for f in decision.frames
            )
        span = self._tracer.start_span(SPAN_INVALID, attributes=attributes)
        if decision.outcome == "refused":
            kind = type(decision.error).__qualname__
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, f"{kind}: {show(decision.received, length)}"))
        span.end()

    def _invalid_log(self, decision: Decision, note: str) -> None:
        level = LOG_LEVELS.get(decision.rule.log)
        if level is None or not logger.isEnabledFor(level):
            return
        received = show(decision.received, decision.book.max_value_length)
        site = decision.frames[0] if decision.frames else None
        held = self.limiter.admit((decision.point.id, decision.outcome, received, site))
        if held is None:
            return
        if decision.outcome == "refused":
            what = f"refused ({type(decision.error).__name__})"
        else:
            applied = show(decision.applied, decision.book.max_value_length)
            how = f"step {decision.step}" if decision.step else "policy fallback"
            what = f"{decision.outcome.replace('_', ' ')} to {applied} ({how})"
        where = ", called from ".join(escape(str(frame)) for frame in decision.frames[:3])
        more = f" ({held} more like this were not logged)" if held else ""
        logger.log(
            level,
            "sgguard: %s at %s %s; at %s%s%s",
            received,
            decision.point.id,
            what,
            where or "an unknown place",
            more,
            f"\n{note}" if note else "",
            extra={
                "sgguard.point": decision.point.id,
                "sgguard.outcome": decision.outcome,
                "sgguard.value.received": received,
            },
        )

    @staticmethod
    def _call_site(frames: tuple[Frame, ...]) -> Attributes:
        if not frames:
            return {}
        return {
            "code.function.name": escape(frames[0].function),
            "code.file.path": escape(frames[0].path),
            "code.line.number": frames[0].line,
        }

    # What the observable instruments read.

    def observe_calls(self) -> Iterator[Observation]:
        return self._observe(Counts.calls, "sgguard.outcome")

    def observe_invalid(self) -> Iterator[Observation]:
        return self._observe(Counts.invalid, "sgguard.outcome", "sgguard.action")

    def observe_transitions(self) -> Iterator[Observation]:
        return self._observe(Counts.transitions, "sgguard.mode.from", "sgguard.mode.to")

    def _observe(
        self, read: Callable[[Counts], Mapping[Any, int]], *names: str
    ) -> Iterator[Observation]:
        """One observation for each point and key, summed over a point's implementations."""
        total: Counter[tuple[str, ...]] = Counter()
        for point, counts in self.source.counts():
            for key, count in read(counts).items():
                row = (point, *((key,) if isinstance(key, str) else key))
                total[row] += count
        for (point, *values), count in total.items():
            yield Observation(
                count, {"sgguard.point": point, **dict(zip(names, values, strict=True))}
            )

    def observe_errors(self) -> Iterator[Observation]:
        for stage, count in errors.counts().items():
            if count:
                yield Observation(count, {"sgguard.stage": stage})

    def observe_points(self) -> Iterator[Observation]:
        for (point, state), count in self.source.states().items():
            yield Observation(count, {"sgguard.point": point, "sgguard.state": state})

    def observe_reloads(self) -> Iterator[Observation]:
        for result, count in self.source.reloads().items():
            yield Observation(count, {"sgguard.result": result})

    def observe_policy(self) -> Iterator[Observation]:
        fingerprint, kind = self.source.policy()
        yield Observation(
            1, {"sgguard.policy.fingerprint": fingerprint, "sgguard.policy.source": kind}
        )


def mode_name(mode: object) -> str:
    """The name of a mode in telemetry: ``none`` for ``None``, ``unknown`` where unseen."""
    if mode is UNSET:
        return UNKNOWN_MODE
    text = plain(mode)
    return show(mode) if text is None else text


def show_mode(name: str, length: int) -> str:
    """A mode's name as a span attribute: escaped and cut."""
    return cut(escape(name[: length + 1]), length)


# Instruments are made once for each meter provider: OpenTelemetry cannot take an observable
# instrument away again. Each reads the telemetry that was installed last over its provider.
_made: weakref.WeakKeyDictionary[Any, tuple[metrics.Histogram, list[weakref.ref[Telemetry]]]]
_made = weakref.WeakKeyDictionary()


DURATION_BUCKETS: Final = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class _Global:
    """Stands for the global meter provider, which may be set after sgguard is installed."""


_GLOBAL: Final = _Global()


def _instruments(provider: MeterProvider | None, telemetry: Telemetry) -> metrics.Histogram:
    key: Any = _GLOBAL if provider is None else provider
    made = _made.get(key)
    if made is not None:
        made[1][0] = weakref.ref(telemetry)
        return made[0]
    current = [weakref.ref(telemetry)]
    meter = metrics.get_meter(SCOPE, __version__, provider)

    def reads(
        observe: Callable[[Telemetry], Iterable[Observation]],
    ) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        def callback(_: CallbackOptions) -> list[Observation]:
            found: list[Observation] = []
            target = current[0]()
            if target is not None:
                with fail_open("status"):
                    found = list(observe(target))
            return found

        return [callback]

    meter.create_observable_counter(
        "sgguard.calls",
        reads(Telemetry.observe_calls),
        unit="{call}",
        description="Guarded calls by outcome.",
    )
    meter.create_observable_counter(
        "sgguard.invalid_values",
        reads(Telemetry.observe_invalid),
        unit="{value}",
        description="Values that SGLang refused, by what became of them.",
    )
    meter.create_observable_counter(
        "sgguard.transitions",
        reads(Telemetry.observe_transitions),
        unit="{transition}",
        description="Changes of a KV cache's mode.",
    )
    meter.create_observable_counter(
        "sgguard.guard_errors",
        reads(Telemetry.observe_errors),
        unit="{error}",
        description="Errors inside sgguard that were kept away from SGLang.",
    )
    meter.create_observable_counter(
        "sgguard.policy.reloads",
        reads(Telemetry.observe_reloads),
        unit="{reload}",
        description="Changes of the policy file, by whether they were put in force.",
    )
    meter.create_observable_gauge(
        "sgguard.points",
        reads(Telemetry.observe_points),
        unit="{place}",
        description="Guarded places by state.",
    )
    meter.create_observable_gauge(
        "sgguard.policy.info",
        reads(Telemetry.observe_policy),
        unit="1",
        description="The policy in force.",
    )
    duration = meter.create_histogram(
        "sgguard.mode.duration",
        unit="s",
        description="How long a mode that ended was on.",
        explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
    )
    _made[key] = (duration, current)
    return duration

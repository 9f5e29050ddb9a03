"""``sgguard demo``: SGLang's own classes, right and wrong values, three policies."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

import sgguard
from sgguard.catalogue import BY_ID, Target
from sgguard.compat.process import sglang_version
from sgguard.decision import Decision
from sgguard.discovery import class_dict
from sgguard.given import ENV_DISABLED
from sgguard.hooks import Candidate
from sgguard.runtime import runtime
from sgguard.values import cut, escape, show

CACHE, BACKEND, ROLE = "glm_image.kv_cache.mode", "diffusion.backend", "diffusion.role"

POLICIES: Final[dict[str, dict[str, Any]]] = {
    "observe": {},
    "normalise": {
        CACHE: {"action": "normalise", "aliases": {"prefill": "write", "reuse": "read"}},
        BACKEND: {"action": "normalise"},
    },
    "fallback": {
        CACHE: {
            "action": "fallback",
            "aliases": {"prefill": "write", "cache": "write", "reuse": "read", "bypass": "skip"},
            "fallback": "skip",
        },
        BACKEND: {
            "action": "fallback",
            "aliases": {"hf": "diffusers", "native": "sglang"},
            "fallback": "auto",
        },
    },
}


_RUNTIME: Final = "sglang.multimodal_gen.runtime"
SGLANG: Final = {
    "cache": (f"{_RUNTIME}.models.dits.glm_image", "GlmImageKVCache"),
    "backend": (f"{_RUNTIME}.server_args", "Backend"),
    "role": (f"{_RUNTIME}.disaggregation.roles", "RoleType"),
}


class RefactoredMode(Enum):
    """What a caller passes after a refactoring: members that are no strings."""

    READ = "read"


#: One condition image, two denoising steps with both guidance branches, and then the values
#: that go wrong in practice.
MODES: Final[tuple[Any, ...]] = (
    "write", "read", "skip", "read", "skip",
    "READ", " Write", RefactoredMode.READ, "prefill", "recycle", None,
)  # fmt: skip


class Classes(SimpleNamespace):
    """The classes under demonstration, and whose they are."""

    cache: Any
    backend: Any
    role: Any
    label: str
    candidates: list[Candidate]


def run() -> None:
    """Run the demo on standard output.

    Raises:
        SystemExit: where sgguard is switched off by the environment.
    """
    console = Console(width=min(Console().width, 100), highlight=False)
    with sgguard.install() as installation:
        if not installation.status().installed:
            raise SystemExit(f"sgguard demo: {ENV_DISABLED} is set, so no value would be guarded")
    classes = _load(console)
    with _logged():
        for name, points in POLICIES.items():
            _one_policy(console, classes, name, points)
    with _logged() as lines:
        _note(console, classes, lines)


# Loading SGLang, or the stand-in.


def _load(console: Console) -> Classes:
    if importlib.util.find_spec("sglang") is None:
        console.print(
            "SGLang is not installed. `pip install sglang` gets it (in a checkout of sgguard,\n"
            "`make demo` installs what it needs on a CPU). What follows runs on a stand-in\n"
            "of ours instead: it shows sgguard, and proves nothing about SGLang.\n"
        )
        return _stand_in()
    console.print("Importing SGLang; this takes about ten seconds ...")
    begin = time.monotonic()
    found: dict[str, Any] = {}
    for role, (name, cls) in SGLANG.items():
        try:
            with _quiet():
                found[role] = getattr(importlib.import_module(name), cls)
        except Exception as error:  # noqa: BLE001 - SGLang may fail in any way on a machine
            console.print(
                f"SGLang {sglang_version() or ''} is installed, but this cannot be used here:\n"
                f"{name}\n{escape(f'{type(error).__name__}: {error}')}\n"
                "`pip install 'sglang[diffusion]'` gets what it needs (in a checkout of sgguard,\n"
                "`make demo` does, on a CPU). What follows runs on a stand-in of ours instead: it\n"
                "shows sgguard, and proves nothing about SGLang.\n",
                markup=False,
            )
            return _stand_in()
    console.print(f"SGLang {sglang_version()}, imported in {time.monotonic() - begin:.1f} s.\n")
    return Classes(label=f"SGLang {sglang_version()}", candidates=[], **found)


def _stand_in() -> Classes:
    module = _stand_in_module()
    found = Classes(
        cache=module.GlmImageKVCache,
        backend=module.Backend,
        role=module.RoleType,
        label="STAND-IN, not SGLang",
        candidates=[],
    )
    for point_id, cls in ((CACHE, found.cache), (BACKEND, found.backend), (ROLE, found.role)):
        point = BY_ID[point_id]
        method = point.targets[0].method
        target = Target(module.__name__, cls.__name__, method, "", "stand-in")
        found.candidates.append(Candidate(point, target, cls, method, class_dict(cls)[method]))
    return found


def _stand_in_module() -> ModuleType:
    # In the wheel it lies beside this file; in a checkout, with the other examples.
    here = Path(__file__).parent
    path = here / "_stand_in.py"
    if not path.exists():
        path = here.parent / "examples" / "stand_in.py"
    spec = importlib.util.spec_from_file_location("sgguard_stand_in", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"sgguard demo: the stand-in is missing: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what SGLang prints while it is imported off the screen, unless the import fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    keep = os.dup(1), os.dup(2)
    with open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), keep, strict=True):
            os.dup2(copy, number)
            os.close(copy)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect sgguard's log lines, which would run into the tables."""
    log = logging.getLogger("sgguard")
    handler, propagate = _Collector(), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield handler.lines
    finally:
        log.propagate = propagate
        log.removeHandler(handler)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# One policy.


def _one_policy(
    console: Console, classes: Classes, name: str, points: dict[str, dict[str, Any]]
) -> None:
    recording = _Recording()
    policy = sgguard.Policy.model_validate({"version": 1, "points": points})
    with sgguard.install(policy, **recording.providers):
        runtime.attach(classes.candidates)
        before = _counts()
        recording.begin()
        table = Table(title=f"action: {name}  ({classes.label})", title_justify="left")
        table.add_column("point and call", overflow="fold")
        table.add_column("SGLang got", overflow="fold")
        table.add_column("outcome", overflow="fold")
        point = ""
        with _decisions() as decisions:
            for row_point, shown, got, outcome in _drive(classes, decisions):
                if row_point != point:
                    point = row_point
                    table.add_section()
                    table.add_row(Text(point, style="bold"))
                table.add_row(*(Text(cell) for cell in ("  " + shown, got, outcome)))
        console.print(table)
        recording.show(console, classes.label, _difference(before, _counts()))
    console.print()


@contextlib.contextmanager
def _decisions() -> Iterator[list[Decision]]:
    """See what the guards decide, with or without an SDK that records it."""
    recorder: Any = runtime.recorder
    found: list[Decision] = []
    record = recorder.invalid

    def invalid(decision: Decision, note: str = "") -> None:
        found.append(decision)
        record(decision, note)

    recorder.invalid = invalid
    try:
        yield found
    finally:
        del recorder.invalid  # the class's own shows again


def _drive(classes: Classes, decisions: list[Decision]) -> Iterator[tuple[str, str, str, str]]:
    cache = classes.cache(num_layers=2)
    modes = [(f"set_mode({show(mode)})", partial(cache.set_mode, mode)) for mode in MODES]
    for shown, call in (*modes, ("clear()", cache.clear)):
        yield CACHE, shown, *_call(CACHE, call, decisions, cache)
    for point, cls, value in (
        (BACKEND, classes.backend, "Diffusers "),
        (BACKEND, classes.backend, "trt"),
        (ROLE, classes.role, "denoising"),
    ):
        shown = f"{cls.__name__}.from_string({value!r})"
        yield point, shown, *_call(point, partial(cls.from_string, value), decisions)


def _call(
    point: str, call: Callable[[], Any], decisions: list[Decision], cache: Any = None
) -> tuple[str, str]:
    """Make one call; say what SGLang ended up with and what the guard made of it."""
    before = _counts()
    decisions.clear()
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - showing it is the point
        return "-", f"refused: {type(error).__name__}: {cut(escape(str(error)), 60)}"
    got = show(cache.caches[0].mode) if cache is not None else str(result)
    if decisions:
        step = f" ({decisions[-1].step})" if decisions[-1].step else ""
        return got, decisions[-1].outcome.replace("_", " ") + step
    moved = [outcome for (p, outcome), _ in _difference(before, _counts()).items() if p == point]
    return got, moved[0] if moved else "watched"


def _counts() -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for point, counts in runtime.counts():
        for outcome, count in counts.calls().items():
            found[point, outcome] += count
    return found


def _difference(
    before: dict[tuple[str, str], int], after: dict[tuple[str, str], int]
) -> dict[tuple[str, str], int]:
    return {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}


# What was recorded.


class _Recording:
    """Providers of the demo's own, so that nothing is set up for the process as a whole."""

    def __init__(self) -> None:
        self.providers: dict[str, Any] = {}
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
                InMemorySpanExporter,
            )
        except ImportError:
            return
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracer = TracerProvider()
        tracer.add_span_processor(SimpleSpanProcessor(self._spans))
        self.providers = {
            "tracer_provider": tracer,
            "meter_provider": MeterProvider(metric_readers=[self._reader]),
        }

    def begin(self) -> None:
        """What is counted from here on is this recording's: counts go on over policies."""
        self._before = self._points() if self.providers else {}

    def _points(self) -> dict[tuple[str, str, str], tuple[float, float | None]]:
        """(metric, point, other attributes) to a number, and a histogram's sum of seconds."""
        found: dict[tuple[str, str, str], tuple[float, float | None]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for item in metric.data.data_points:
                        attributes: dict[str, Any] = dict(item.attributes or {})
                        point = str(attributes.pop("sgguard.point", "-"))
                        what = " ".join(
                            f"{key.removeprefix('sgguard.')}={value}"
                            for key, value in attributes.items()
                        )
                        measured: Any = item
                        number = getattr(item, "value", None)
                        found[metric.name, point, what] = (
                            (measured.count, measured.sum) if number is None else (number, None)
                        )
        return found

    def show(self, console: Console, label: str, counts: dict[tuple[str, str], int]) -> None:
        if not self.providers:
            console.print(
                "OpenTelemetry's SDK is not installed (pip install 'sgguard[otel]'), so no spans "
                "are recorded.\nThe counts all the same:",
                markup=False,
            )
            for (point, outcome), count in counts.items():
                console.print(f"  {point} {outcome}: {count}")
            return
        console.print(self._span_table(label))
        console.print(self._metric_table(label))

    def _span_table(self, label: str) -> Table:
        table = Table(title=f"spans  ({label})", title_justify="left")
        for heading in ("span", "what", "count"):
            table.add_column(heading, overflow="fold")
        seen: Counter[tuple[str, str]] = Counter()
        for span in self._spans.get_finished_spans():
            a = dict(span.attributes or {})
            if "sgguard.mode.to" in a:
                what = f"{a['sgguard.mode.from']} -> {a['sgguard.mode.to']}"
            else:
                what = f"{a['sgguard.value.received']} {a['sgguard.outcome']}"
                if "sgguard.value.applied" in a:
                    what += f" to {a['sgguard.value.applied']}"
                if "sgguard.step" in a:
                    what += f" ({a['sgguard.step']})"
            seen[span.name, what] += 1
        for (name, what), count in seen.items():
            table.add_row(Text(name), Text(what), str(count))
        return table

    def _metric_table(self, label: str) -> Table:
        table = Table(title=f"metrics  ({label})", title_justify="left")
        for heading in ("metric", "point", "attributes and value"):
            table.add_column(heading, overflow="fold")
        rows: dict[tuple[str, str], list[str]] = {}
        for (metric, point, what), (number, seconds) in self._points().items():
            if point not in (CACHE, BACKEND, ROLE, "-"):
                continue  # places that the demo does not call
            if metric not in GAUGES:
                number -= self._before.get((metric, point, what), (0, None))[0]  # noqa: PLW2901
            if number:
                took = "" if seconds is None else f" ({seconds * 1e3:.2f} ms)"
                rows.setdefault((metric, point), []).append(f"{what}: {number:g}{took}")
        for (metric, point), values in sorted(rows.items()):
            table.add_row(Text(metric), Text(point), Text("\n".join(sorted(values))))
        return table


GAUGES: Final = ("sgguard.points", "sgguard.policy.info")


def _note(console: Console, classes: Classes, log: list[str]) -> None:
    console.print("What a developer sees under observe, at the end of the traceback:\n")
    with sgguard.install():
        runtime.attach(classes.candidates)
        try:
            classes.cache(num_layers=1).set_mode("READ")
        except ValueError as error:
            lines = traceback.format_exception_only(type(error), error)
            console.print("".join(lines), markup=False)
            if not hasattr(error, "__notes__"):  # Python 3.10: the note is logged instead
                console.print("and in the log:\n")
                console.print("\n".join(log), markup=False)

"""Shared fixtures: recorded telemetry as plain data, and no internal error left unseen."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sgguard
from sgguard import errors

# No test may look for a model on a hub.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say why."""
    if importlib.util.find_spec("sglang") is None:
        skip = pytest.mark.skip(reason="SGLang is not installed; `make test` installs it")
        for item in items:
            if item.get_closest_marker("sglang"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_hidden_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error fails the test. Tests of fail-open set this back."""
    monkeypatch.setattr(errors, "reraise", True)


class Recorded:
    """What one installation recorded, through OpenTelemetry's SDK."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider(metric_readers=[self._reader])
        self._before: dict[Any, Any] = {}

    def install(self, policy: Any = None) -> sgguard.Installation:
        if isinstance(policy, dict):
            policy = sgguard.Policy.model_validate({"version": 1, **policy})
        handle = sgguard.install(
            policy,
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
        )
        self._before = self._points()
        return handle

    def spans(self) -> list[ReadableSpan]:
        """Finished spans, in the order they ended."""
        return list(self._exporter.get_finished_spans())

    def transitions(self) -> list[tuple[Any, Any]]:
        """(from, to) of every transition span."""
        return [
            (s.attributes["sgguard.mode.from"], s.attributes["sgguard.mode.to"])
            for s in self.spans()
            if s.name == "sglang.kv_cache.set_mode" and s.attributes
        ]

    def invalid(self) -> list[dict[str, Any]]:
        """The attributes of every invalid-value span."""
        return [dict(s.attributes or {}) for s in self.spans() if s.name == "sgguard.invalid_value"]

    def _points(self) -> dict[Any, Any]:
        data = self._reader.get_metrics_data()
        found: dict[Any, Any] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        key = (metric.name, tuple(sorted((point.attributes or {}).items())))
                        found[key] = getattr(point, "value", None)
                        if found[key] is None:
                            found[key] = point.count
        return found

    def metric(self, name: str) -> dict[tuple[Any, ...], Any]:
        """A metric's points as ``{attribute values, by sorted key: value}``.

        Counts are those since ``install``: they go on over installations of one process.
        A histogram is given by its count.
        """
        found = {}
        for (metric, attributes), value in self._points().items():
            if metric != name:
                continue
            if name not in ("sgguard.points", "sgguard.policy.info"):
                value = value - self._before.get((metric, attributes), 0)  # noqa: PLW2901
            if value:
                found[tuple(v for _, v in attributes)] = value
        return found


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Telemetry of its own; everything is uninstalled afterwards."""
    found = Recorded()
    yield found
    sgguard.uninstall()
    found.tracer_provider.shutdown()
    found.meter_provider.shutdown()


@pytest.fixture(autouse=True)
def _quiet_log() -> Iterator[None]:
    """Warnings are not held back because an earlier test logged the same."""
    from sgguard.runtime import runtime

    runtime.recorder.limiter._seen.clear()
    yield
    logging.getLogger("sgguard").setLevel(logging.NOTSET)

"""sgguard's spans and metrics, printed by OpenTelemetry's console exporters.

Run it:  python examples/console_telemetry.py       (needs: pip install 'sgguard[otel]')

The providers are handed to sgguard and not set as global ones: SGLang sets up its own
tracing, and refuses to where somebody was there before it.
"""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import sgguard

tracer_provider = TracerProvider()
tracer_provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
meter_provider = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())])

sgguard.install(
    "inline:{version: 1, points: {glm_image.kv_cache.mode: {action: normalise}}}",
    tracer_provider=tracer_provider,
    meter_provider=meter_provider,
)

from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache  # noqa: E402

cache = GlmImageKVCache(num_layers=2)
cache.set_mode("write")
cache.set_mode("READ")
cache.clear()

tracer_provider.shutdown()
meter_provider.shutdown()  # the last metrics are written here

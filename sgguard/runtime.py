"""The one installation of this process: policy, hooks and telemetry put together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from sgguard import errors
from sgguard._text import read_text
from sgguard.catalogue import UNSET
from sgguard.errors import PolicyError, fail_open
from sgguard.guard import Counts, Guard
from sgguard.hooks import Candidate, Hooks, Place, State, unguarded
from sgguard.rules import OBSERVE, Action, Rule, TelemetryConfig
from sgguard.telemetry import Telemetry
from sgguard.values import escape, show

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from sgguard.policy import Policy, Source

logger = logging.getLogger("sgguard")

ENV_POLICY: Final = "SGGUARD_POLICY"

NO_POLICY: Final = ("none", "built-in")


@dataclass(frozen=True)
class PointStatus:
    """One guarded place, or a point of the catalogue that is not guarded now.

    Attributes:
        point: the point's id.
        implementation: ``sglang`` or ``diffusers``.
        state: ``active``, ``lost``, ``waiting`` (module not imported) or ``absent`` (module
            imported, class not in it).
        target: ``module:Class.method``.
        action: what the policy allows there.
        calls: guarded calls of the point so far, by outcome.
        problem: why the policy is not in force there, if it is not.
    """

    point: str
    implementation: str
    state: State
    target: str
    action: Action
    calls: Mapping[str, int]
    problem: str = ""


@dataclass(frozen=True)
class Status:
    """What sgguard is doing in this process.

    Attributes:
        installed: whether guards are on.
        policy_fingerprint: of the policy in force; ``none`` without one.
        policy_source: the policy file, ``python``, or ``built-in``.
        points: the guarded places, then what is not guarded.
        guard_errors: internal errors by stage.
    """

    installed: bool
    policy_fingerprint: str
    policy_source: str
    points: tuple[PointStatus, ...]
    guard_errors: Mapping[str, int] = field(default_factory=dict)


class Installation:
    """What ``install`` returns: a handle that is also a context manager.

    ``uninstall`` may be called twice.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def uninstall(self) -> None:
        """Take every guard off; see ``sgguard.uninstall``."""
        self._runtime.uninstall()

    def status(self) -> Status:
        """See ``sgguard.status``."""
        return self._runtime.status()

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.uninstall()


class _Unread:
    """The text of a policy file, not yet parsed: pydantic and yaml load when it is needed."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name


class Runtime:
    """Holds the policy in force and makes guards by it."""

    def __init__(self) -> None:
        # One lock for policy and hooks: an import takes them in one order, install() in the
        # other. Guarded calls take none.
        self._lock = threading.RLock()
        self._counts: dict[str, Counts] = {}
        self._source: Source | None = None
        self._unread: _Unread | None = None
        self._rejected: dict[str, str] = {}
        self.telemetry = Telemetry(self)
        self._providers: tuple[Any, Any] = (None, None)
        self.hooks = Hooks(self._make_guard, self._lock)

    # Telemetry's side (sgguard.telemetry.Source).

    def counts(self) -> Mapping[str, Counts]:
        return self._counts

    def states(self) -> Mapping[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        if self.hooks.active:
            for point in self.status().points:
                key = (point.point, point.state)
                found[key] = found.get(key, 0) + 1
        return found

    def policy(self) -> tuple[str, str]:
        source = self._source
        return NO_POLICY if source is None else (source.policy.fingerprint, source.name)

    # Installing.

    def install(
        self,
        policy: Policy | str | os.PathLike[str] | None = None,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> Installation:
        source = _source_of(policy)
        with self._lock:
            if source is None:
                self._parse_unread()
                source = self._source
            found = [(c, self._bare_guard(c)) for c in self.hooks.find()]
            guards = [guard for _, guard in found] + self.hooks.guards()
            wrong = [] if source is None else self._refused_by_sglang(source, guards)
            if source is not None and wrong:
                raise source.error(wrong)
            # Nothing has been changed up to here, and nothing below can be refused.
            self._source, self._unread = source, None
            self._rejected.clear()
            self._set_providers(tracer_provider, meter_provider)
            self.telemetry.config = (
                TelemetryConfig() if source is None else source.policy.telemetry_config()
            )
            for guard in guards:
                guard.recorder = self.telemetry
                guard.rule = self._rule(guard.point.id)
            self.hooks.activate(found)
        return Installation(self)

    def _set_providers(self, tracer_provider: Any, meter_provider: Any) -> None:
        if self.hooks.active:  # what is not given stays
            tracer_provider = tracer_provider or self._providers[0]
            meter_provider = meter_provider or self._providers[1]
        if (tracer_provider, meter_provider) != self._providers:
            self._providers = (tracer_provider, meter_provider)
            self.telemetry = Telemetry(self, tracer_provider, meter_provider)

    def install_from_environment(self) -> None:
        """What ``import sgguard.auto`` does. Raises nothing; loads neither pydantic nor yaml.

        The policy file is read at once, so that a wrong path is reported at start-up, and
        parsed when the first guarded module is imported.
        """
        with fail_open("hook"):
            if self.hooks.active:
                return  # a call of install() knows better than the environment
            path = os.environ.get(ENV_POLICY, "")
            if path:
                try:
                    self._unread = _Unread(read_text(path), path)
                except PolicyError as error:
                    _log_unusable(error)
            self.hooks.activate()

    def uninstall(self) -> None:
        with self._lock:
            self.hooks.deactivate()
            self._source, self._unread = None, None
            self._rejected.clear()
            self.telemetry.config = TelemetryConfig()

    def status(self) -> Status:
        self._parse_unread()
        places = self.hooks.places()
        points = [self._status_of(place, state) for place, state in places]
        for point, implementation, state, target in unguarded([p for p, _ in places]):
            points.append(
                PointStatus(
                    point.id,
                    implementation,
                    state,
                    str(target),
                    self._rule(point.id).action,
                    self._calls(point.id),
                    self._rejected.get(point.id, ""),
                )
            )
        fingerprint, name = self.policy()
        found: dict[str, int] = {stage: count for stage, count in errors.counts().items() if count}
        return Status(self.hooks.active, fingerprint, name, tuple(points), found)

    def _status_of(self, place: Place, state: State) -> PointStatus:
        point_id = place.candidate.point.id
        return PointStatus(
            point_id,
            place.candidate.target.implementation,
            state,
            str(place.candidate.target),
            place.guard.rule.action,
            self._calls(point_id),
            self._rejected.get(point_id, ""),
        )

    def _calls(self, point_id: str) -> Mapping[str, int]:
        counts = self._counts.get(point_id)
        return {} if counts is None else {str(k): n for k, n in counts.calls().items()}

    # Guards and their rules.

    def _rule(self, point_id: str) -> Rule:
        if self._source is None or point_id in self._rejected:
            return OBSERVE
        return self._source.policy.rule(point_id)

    def _bare_guard(self, candidate: Candidate) -> Guard:
        with self._lock:
            counts = self._counts.setdefault(candidate.point.id, Counts())
        return Guard(
            candidate.point,
            candidate.target.implementation,
            candidate.owner,
            candidate.raw,
            OBSERVE,
            counts,
            self.telemetry,
        )

    def _make_guard(self, candidate: Candidate) -> Guard:
        """Make the guard of a class that has just been imported.

        A policy that SGLang contradicts cannot be refused any more at this point: raising
        would break the user's import. It is logged, and the point is only observed.
        """
        guard = self._bare_guard(candidate)
        with fail_open("policy"):
            self._parse_unread()
            source = self._source
            if source is not None:
                wrong = self._refused_by_sglang(source, [guard])
                if wrong:
                    message = str(source.error(wrong))
                    self._rejected[candidate.point.id] = message
                    logger.error(
                        "sgguard: %s is only observed, because its policy cannot work:\n%s",
                        candidate.point.id,
                        message,
                    )
                guard.rule = self._rule(candidate.point.id)
        return guard

    def _parse_unread(self) -> None:
        with self._lock:
            unread, self._unread = self._unread, None
            if unread is None:
                return
            from sgguard.policy import parse_policy

            try:
                self._source = parse_policy(unread.text, unread.name)
            except PolicyError as error:
                _log_unusable(error)
            else:
                self.telemetry.config = self._source.policy.telemetry_config()

    @staticmethod
    def _refused_by_sglang(
        source: Source, guards: list[Guard]
    ) -> list[tuple[tuple[str | int, ...], str]]:
        """What a policy says that the SGLang in this process contradicts."""
        wrong: dict[tuple[str | int, ...], str] = {}
        for guard in guards:
            point_id = guard.point.id
            entry = source.policy.points.get(point_id)
            if entry is None:
                continue
            rule = source.policy.rule(point_id)
            named: list[tuple[tuple[str | int, ...], object]] = [
                (("points", point_id, "aliases", alias), value)
                for alias, value in entry.aliases.items()
            ]
            if rule.fallback is not UNSET:
                named.append((("points", point_id, "fallback"), rule.fallback))
            for path, value in named:
                if guard.accepts(value) is not True:
                    known = ", ".join(show(item) for item in guard.accepted())
                    wrong[path] = f"SGLang does not accept {show(value)} there; it accepts {known}"
        return list(wrong.items())


def _source_of(policy: Policy | str | os.PathLike[str] | None) -> Source | None:
    if policy is None:
        return None
    from sgguard.policy import Policy, Source, parse_policy

    if isinstance(policy, Policy):
        return Source(policy, "python")
    if isinstance(policy, (str, os.PathLike)):
        return parse_policy(read_text(policy), os.fspath(policy))
    raise PolicyError(
        f"policy must be a sgguard.Policy or the path of a policy file, not {show(policy)}"
    )


def _log_unusable(error: PolicyError) -> None:
    logger.error(
        "sgguard: the policy cannot be used; values are observed, none is repaired:\n%s",
        "\n".join(escape(line) for line in str(error).splitlines()),
    )


runtime: Final = Runtime()

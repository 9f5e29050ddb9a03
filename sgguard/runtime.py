"""The one installation of this process: policy, hooks and telemetry put together."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from sgguard import errors
from sgguard._status import PointStatus, Status
from sgguard.catalogue import Target
from sgguard.compat.fork import renew_after_fork
from sgguard.counts import Counts
from sgguard.errors import PolicyError, fail_open, say
from sgguard.given import (
    ENV_ACTION,
    ENV_DISABLED,
    ENV_POLICY,
    Unread,
    disabled,
    parse,
    source_of,
    unread_of,
    unread_of_action,
)
from sgguard.guard import Guard
from sgguard.hooks import Candidate, Hooks, State, unguarded
from sgguard.reload import Watcher
from sgguard.rules import Book
from sgguard.telemetry import Telemetry
from sgguard.values import escape

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from sgguard.policy import Policy
    from sgguard.policy_file import Source


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


class Runtime:
    """Holds the policy in force and makes guards by it."""

    def __init__(self) -> None:
        # One lock for policy and hooks: an import takes them in one order, install() in the
        # other. Guarded calls take none.
        self._lock = threading.RLock()
        self._counts: dict[tuple[str, str], Counts] = {}
        self._source: Source | None = None
        self._unread: Unread | None = None
        self._watcher: Watcher | None = None
        self._reloads: dict[str, int] = {}
        self._providers: tuple[Any, Any] = (None, None)
        #: The policy in force. Guards read this reference once for each value SGLang refuses.
        self.book = Book()
        self.recorder = Telemetry(self)
        self.hooks = Hooks(self._make_guard, self._lock)
        renew_after_fork(self)

    def renew_locks(self) -> None:
        self._lock = self.hooks.lock = threading.RLock()

    # Telemetry's side (sgguard.telemetry.Source).

    def counts(self) -> Iterable[tuple[str, Counts]]:
        return [(point, counts) for (point, _), counts in list(self._counts.items())]

    def states(self) -> Mapping[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        if self.hooks.active:
            for point in self.status().points:
                key = (point.point, point.state)
                found[key] = found.get(key, 0) + 1
        return found

    def policy(self) -> tuple[str, str]:
        return self.book.fingerprint, self.book.source

    def reloads(self) -> Mapping[str, int]:
        return dict(self._reloads)

    # The guards' side (sgguard.guard.Control).

    def used(self) -> None:
        watcher = self._watcher
        if watcher is not None:
            watcher.start()

    # Installing.

    def install(
        self,
        policy: Policy | str | os.PathLike[str] | None = None,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> Installation:
        unread = unread_of(policy)
        given = source_of(policy) if unread is None else unread.parse()
        if disabled():
            say(logging.INFO, "sgguard: not installed, because %s is set", ENV_DISABLED)
            return Installation(self)
        with self._lock:
            if given is None:
                self._parse_unread()
            source = given or self._source
            found = [(c, self._bare_guard(c)) for c in self.hooks.find()]
            guards = [guard for _, guard in found] + self.hooks.guards()
            if source is not None:
                _check(source, guards)
            # Nothing has been changed up to here, and nothing below can be refused.
            self._set_providers(tracer_provider, meter_provider)
            if given is not None:
                self._put_in_force(given, unread.text if unread else "")
            elif source is not None:
                self.book = source.policy.book(source.name)
            self.hooks.activate(found)
        return Installation(self)

    def _set_providers(self, tracer_provider: Any, meter_provider: Any) -> None:
        if self.hooks.active:  # what is not given stays
            if tracer_provider is None:
                tracer_provider = self._providers[0]
            if meter_provider is None:
                meter_provider = self._providers[1]
        tracer, meter = self._providers
        if tracer_provider is not tracer or meter_provider is not meter:
            self._providers = (tracer_provider, meter_provider)
            self.recorder = Telemetry(self, tracer_provider, meter_provider)

    def _put_in_force(self, source: Source, text: str) -> None:
        """Make a policy the one in force, and watch the file it came from."""
        self._source, self._unread = source, None
        self.book = source.policy.book(source.name)
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            watcher.stop()
        if source.path is not None and source.policy.reload.mode == "live":
            self._watcher = Watcher(source.path, text, self._reload, self._reload_failed)
            self._watcher.start()

    def attach(self, candidates: Iterable[Candidate]) -> None:
        """Guard classes outside the modules that are watched (the demo's stand-in)."""
        with self._lock:
            if self.hooks.active:  # install() does nothing where SGGUARD_DISABLED is set
                self.hooks.activate([(c, self._bare_guard(c)) for c in candidates])

    def install_from_environment(self) -> None:
        """What ``import sgguard.auto`` does. Raises nothing; loads neither pydantic nor yaml.

        The policy file is read at once, so that a wrong path is reported at start-up, and
        parsed when the first guarded module is imported.
        """
        with fail_open("hook"):
            if self.hooks.active or disabled():
                return  # a call of install() knows better than the environment
            given = os.environ.get(ENV_POLICY, "")
            action = os.environ.get(ENV_ACTION, "")
            try:
                if given:
                    self._unread = unread_of(given)
                    if action:
                        say(
                            logging.WARNING,
                            "sgguard: %s is ignored, because %s gives a policy",
                            ENV_ACTION,
                            ENV_POLICY,
                        )
                elif action:
                    self._unread = unread_of_action(action)
            except PolicyError as error:
                _log_unusable(error)
            self.hooks.activate()

    def uninstall(self) -> None:
        with self._lock:
            self.hooks.deactivate()
            self._source, self._unread = None, None
            self.book = Book()
            self._set_providers(None, None)
            watcher, self._watcher = self._watcher, None
        # Outside the lock: a look that is under way may be waiting for it.
        if watcher is not None:
            watcher.stop()

    @contextlib.contextmanager
    def override(self, policy: Policy) -> Iterator[None]:
        with self._lock:
            self._parse_unread()
            installed, before, book = self.hooks.active, self._source, self.book
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        try:
            self.install(policy)
            yield
        finally:
            if not installed:
                self.uninstall()
            with self._lock:
                self._source, self.book = before, book
                if installed and before is not None and watcher is not None and before.path:
                    # The file may have changed meanwhile: its text of before is not known to
                    # be its text of now, so it is looked at afresh.
                    self._watcher = Watcher(before.path, "", self._reload, self._reload_failed)
                    self._watcher.start()

    # Reloading.

    def _reload(self, text: str) -> None:
        with self._lock:
            current = self._source
            if current is None or current.path is None:
                return
            try:
                source = parse(text, current.name, current.path)
                _check(source, self.hooks.guards())
            except PolicyError as error:
                self._reload_failed(error)
                return
            if source.policy.fingerprint == self.book.fingerprint and not self.book.rejected:
                return  # comments or spelling: the same policy
            self._source = source
            self.book = source.policy.book(source.name)
            self._reloads["applied"] = self._reloads.get("applied", 0) + 1
            pinned = source.policy.reload.mode != "live"
            watcher = self._watcher
            if pinned and watcher is not None:
                self._watcher = None
                watcher.stop()
        say(
            logging.INFO,
            "sgguard: policy %s from %s is in force%s",
            self.book.fingerprint,
            escape(current.name),
            "; it is now fixed until restart" if pinned else "",
        )

    def _reload_failed(self, error: PolicyError) -> None:
        with self._lock:
            self._reloads["invalid"] = self._reloads.get("invalid", 0) + 1
        say(
            logging.ERROR,
            "sgguard: the changed policy cannot be used; the one before (%s) stays in force:\n%s",
            self.book.fingerprint,
            _lines(error),
        )

    # Status.

    def status(self) -> Status:
        self._parse_unread()
        places = self.hooks.places()
        points = [
            self._status_of(
                place.candidate.point.id,
                place.candidate.target.implementation,
                state,
                place.candidate.target,
            )
            for place, state in places
        ]
        for point, implementation, state, target in unguarded(
            [p for p, _ in places], self.hooks.active
        ):
            points.append(self._status_of(point.id, implementation, state, target))
        fingerprint, name = self.policy()
        found: dict[str, int] = {stage: n for stage, n in errors.counts().items() if n}
        return Status(self.hooks.active, fingerprint, name, tuple(points), found)

    def _status_of(
        self, point_id: str, implementation: str, state: State, target: Target
    ) -> PointStatus:
        counts = self._counts.get((point_id, implementation))
        return PointStatus(
            point_id,
            implementation,
            state,
            str(target),
            self.book.rules(point_id)[0].action,
            {} if counts is None else {str(k): n for k, n in counts.calls().items()},
            self.book.rejected.get(point_id, ""),
        )

    # Guards.

    def _bare_guard(self, candidate: Candidate) -> Guard:
        with self._lock:
            key = (candidate.point.id, candidate.target.implementation)
            counts = self._counts.setdefault(key, Counts())
        return Guard(
            candidate.point,
            candidate.target.implementation,
            candidate.owner,
            candidate.raw,
            counts,
            self,
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
                try:
                    _check(source, [guard])
                except PolicyError as error:
                    self.book = self.book.rejecting({candidate.point.id: str(error)})
                    say(
                        logging.ERROR,
                        "sgguard: %s is only observed, because its policy cannot work:\n%s",
                        candidate.point.id,
                        _lines(error),
                    )
        return guard

    def _parse_unread(self) -> None:
        with self._lock:
            unread, self._unread = self._unread, None
            if unread is None:
                return
            try:
                source = unread.parse()
            except PolicyError as error:
                _log_unusable(error)
            else:
                self._put_in_force(source, unread.text)


def _check(source: Source, guards: Iterable[Guard]) -> None:
    """Raise ``InvalidPolicyError`` where the SGLang in this process contradicts a policy."""
    from sgguard.policy_file import against_sglang

    wrong = [item for guard in guards for item in against_sglang(source.policy, guard)]
    if wrong:
        raise source.error(list(dict.fromkeys(wrong)))


def _lines(error: PolicyError) -> str:
    return "\n".join(escape(line) for line in str(error).splitlines())


def _log_unusable(error: PolicyError) -> None:
    say(
        logging.ERROR,
        "sgguard: the policy cannot be used; values are observed, none is repaired:\n%s",
        _lines(error),
    )


runtime: Final = Runtime()

"""Watching imports that wrapt's post-import hooks cannot: any module of a package, and reloads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

import wrapt


class _Loader(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A module's own loader, which tells the hooks when it has run the module."""

    def __init__(self, loader: Any, loaded: Callable[[ModuleType], None]) -> None:
        super().__init__(loader)
        self._self_loaded = loaded

    def exec_module(self, module: ModuleType) -> None:
        # The proxy has done its work once the module runs; what looks at the module's loader
        # later (inspect, importlib.resources, pickle) is to find the real one.
        loader = self.__wrapped__
        spec = module.__spec__
        if spec is not None and cast("Any", spec.loader) is self:
            spec.loader = loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = loader
        loader.exec_module(module)
        self._self_loaded(module)


class _Busy(threading.local):
    """The names each thread is finding just now."""

    def __init__(self) -> None:
        self.names: set[str] = set()


class Finder:
    """Finds nothing itself: lets the other finders find, and wraps the loader they give.

    Any trouble here means "not watched", never a failed import.

    Args:
        prefix: the modules to watch, ``package.``.
        hooked: names that a wrapt hook watches; of these only reloads are ours.
        loaded: called with each module that has run.
    """

    def __init__(
        self, prefix: str, hooked: Collection[str], loaded: Callable[[ModuleType], None]
    ) -> None:
        self._prefix = prefix
        self._hooked = hooked
        self._loaded = loaded
        self._busy = _Busy()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder.find_spec``."""
        if name in self._hooked:
            if target is None:  # wrapt's hook has it; a reload (target given) it does not see
                return None
        elif not name.startswith(self._prefix):
            return None
        if name in self._busy.names:  # one of the other finders asks all of them again
            return None
        self._busy.names.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self:
                    continue
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = cast("Loader", _Loader(spec.loader, self._loaded))
                    return spec
        except Exception:  # noqa: BLE001 - the import system asks the finder that failed next
            return None
        finally:
            self._busy.names.discard(name)
        return None

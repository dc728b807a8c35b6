"""The ladder: one file a kernel, registered by being in this folder.

``k<rung>_<name>.py`` is a rung, ``t<rung>_<name>.py`` a teaching kernel beside it. Adding a rung
is adding one file: tests, benchmarks and the documentation loop over :data:`REGISTRY`.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import pkgutil
import sys
from dataclasses import replace
from typing import Any

from gemv.kernels import _base
from gemv.kernels._base import Kernel, Spec

#: Of our modules those that run on the host; what another one offers may need Numba.
_ON_THE_HOST = ("gemv._problem",)


class _Deferred:
    """Stands for ``module.name`` until somebody uses it."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def _real(self) -> Any:
        module, name = self._place
        return getattr(importlib.import_module(module), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._real()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)


class _DeferredModule:
    """A module that is not imported; its names, but for those in `known`, are deferred."""

    def __init__(self, name: str, known: dict[str, Any] | None = None) -> None:
        self._name, self._known = name, known or {}

    def __getattr__(self, name: str) -> Any:
        return self._known[name] if name in self._known else _Deferred(self._name, name)


def _import(name: str, *arguments: Any) -> Any:
    """``__import__`` for the host's half of a kernel file: what needs Numba is put off."""
    if name == _base.__name__:
        return _DeferredModule(name, vars(_base))
    package = name.partition(".")[0]
    if package == "numba" or (package == "gemv" and name not in _ON_THE_HOST):
        return _DeferredModule(name)
    return builtins.__import__(name, *arguments)


class _Build:
    """A kernel's ``build``, which imports its file when machine code has to be made."""

    def __init__(self, module: str) -> None:
        self.__module__ = module

    def __call__(self, spec: Spec) -> Any:
        return importlib.import_module(self.__module__).KERNEL.build(spec)


def _host_half(module: str) -> Kernel:
    """The Kernel of a file without Numba: knobs, geometry and what it accepts, but no device code.

    Importing Numba takes longer than everything else in a first call whose machine code comes from
    the disk. The file is run as it stands, with another ``__import__``.
    """
    found = importlib.util.find_spec(module)
    assert found is not None and found.loader is not None
    names: dict[str, Any] = {
        "__name__": module,
        "__file__": found.origin,
        "__builtins__": {**vars(builtins), "__import__": _import},
    }
    exec(found.loader.get_code(module), names)  # type: ignore[attr-defined]
    return replace(names["KERNEL"], build=_Build(module))


def _needs_numba_anyway() -> bool:
    simulator = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    return simulator or "numba.cuda" in sys.modules


def _registry() -> dict[str, Kernel]:
    kernels = []
    whole = _needs_numba_anyway()
    for module in pkgutil.iter_modules(__path__):
        if module.name[0] in "kt" and module.name[1:3].isdigit():
            name = f"{__name__}.{module.name}"
            kernels.append(importlib.import_module(name).KERNEL if whole else _host_half(name))
    kernels.sort(key=lambda kernel: (kernel.rung, kernel.beside, kernel.name))
    registry = {kernel.name: kernel for kernel in kernels}
    if len(registry) != len(kernels):
        raise RuntimeError("two kernel files share a name")
    return registry


#: Every kernel by name, in reading order.
REGISTRY: dict[str, Kernel] = _registry()


def get(name: str) -> Kernel:
    """The kernel called `name`; a ValueError that lists the known ones otherwise."""
    try:
        return REGISTRY[name]
    except (KeyError, TypeError):
        raise ValueError(f"no kernel {name!r}; known kernels: {', '.join(REGISTRY)}") from None

"""The ladder: one file a kernel, registered by being in this folder.

``k<rung>_<name>.py`` is a rung, ``t<rung>_<name>.py`` a teaching kernel beside it. Adding a rung
is adding one file: tests, benchmarks and the documentation loop over :data:`REGISTRY`.

Importing a kernel file needs no Numba: ``build`` imports what its device code is written in. So a
process whose machine code comes from the disk never loads the compiler.
"""

from __future__ import annotations

import importlib
import pkgutil

from gemv.kernels.kernel import Kernel


def _registry() -> dict[str, Kernel]:
    kernels = [
        importlib.import_module(f"{__name__}.{module.name}").KERNEL
        for module in pkgutil.iter_modules(__path__)
        if module.name[0] in "kt" and module.name[1:3].isdigit()
    ]
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

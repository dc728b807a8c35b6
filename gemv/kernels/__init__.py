"""The ladder: one file a kernel, registered by being in this folder.

``k<rung>_<name>.py`` is a rung, ``t<rung>_<name>.py`` a teaching kernel beside it. Tests and the
documentation loop over :data:`REGISTRY`, so a new rung is one new file; ``docs/add_kernel.md`` says
what has to be in it.

A kernel file does not import Numba: its ``build`` imports :mod:`gemv.language` when it is called.
So a process that finds its machine code on the disk never loads the compiler.
"""

from __future__ import annotations

import importlib
import pkgutil

from gemv.kernels.kernel import Kernel


def _registry() -> dict[str, Kernel]:
    kernels: dict[str, Kernel] = {}
    for file in pkgutil.iter_modules(__path__):
        if file.name[0] in "kt" and file.name[1:3].isdigit():
            module = importlib.import_module(f"{__name__}.{file.name}")
            kernel = getattr(module, "KERNEL", None)
            if not isinstance(kernel, Kernel):
                raise RuntimeError(f"{file.name}.py: end the file with KERNEL = Kernel(...)")
            if kernel.name in kernels:
                raise RuntimeError(f"{file.name}.py: another file has a kernel {kernel.name!r}")
            kernels[kernel.name] = kernel
    in_order = sorted(kernels.values(), key=lambda each: (each.rung, each.beside, each.name))
    return {kernel.name: kernel for kernel in in_order}


#: Every kernel by name, in reading order.
REGISTRY: dict[str, Kernel] = _registry()


def get(name: str) -> Kernel:
    """The kernel called `name`; a ValueError that lists the known ones otherwise."""
    try:
        return REGISTRY[name]
    except (KeyError, TypeError):
        raise ValueError(f"no kernel {name!r}; known kernels: {', '.join(REGISTRY)}") from None

"""The ladder: one file a kernel, registered by being in this folder.

``k<rung>_<name>.py`` is a rung, ``t<rung>_<name>.py`` a teaching kernel beside it. Tests and the
documentation loop over :data:`REGISTRY`, so a new rung is one new file; ``docs/add_kernel.md`` says
what has to be in it.

A kernel file is imported when its kernel is first looked up, and that needs no Numba: only
``build`` imports what device code is written in. So a process whose machine code comes from the
disk loads neither the compiler nor the kernels that it does not use.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, MutableMapping

from gemv.core.values import shown
from gemv.kernels.kernel import Kernel


class _Ladder(MutableMapping[str, Kernel]):
    """Every kernel by name, in reading order; a file is imported when its kernel is looked up."""

    def __init__(self) -> None:
        files = [
            (int(module.name[1:3]), module.name[0] == "t", module.name[4:], module.name)
            for module in pkgutil.iter_modules(__path__)
            if module.name[0] in "kt" and module.name[1:3].isdigit()
        ]
        #: Kernels by name, or the modules that they will come from.
        self._kernels: dict[str, Kernel | str] = {
            name: module for _, _, name, module in sorted(files)
        }
        for _, _, name, module in files:
            if self._kernels[name] != module:
                raise RuntimeError(f"{module}.py: another file has a kernel {name!r}")

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._kernels[name]
        if isinstance(kernel, str):
            file = f"{kernel}.py"
            found = getattr(importlib.import_module(f"{__name__}.{kernel}"), "KERNEL", None)
            if not isinstance(found, Kernel):
                raise RuntimeError(f"{file}: end the file with KERNEL = Kernel(...)")
            if found.name != name:
                raise RuntimeError(f"{file}: its KERNEL is called {found.name!r}, not {name!r}")
            kernel = found
            self._kernels[name] = kernel
        return kernel

    def __setitem__(self, name: str, kernel: Kernel) -> None:
        self._kernels[name] = kernel

    def __delitem__(self, name: str) -> None:
        del self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)


REGISTRY = _Ladder()


#: Kernels of batches, of several vectors and of small matrices, by the names of their modules. They
#: are no rungs, and are found by name.
BATCHED = {
    "small_matrix": "small.b01_small_matrix",
    "small_items": "batched.b01_small_items",
    "staged_rows": "batched.b02_staged_rows",
    "staged_columns": "batched.b03_staged_columns",
    "several_rows": "vectors.b01_several_rows",
    "several_columns": "vectors.b02_several_columns",
    "several_long_columns": "vectors.b03_several_long_columns",
    "several_small": "vectors.b04_several_small",
    "several_short_rows": "vectors.b05_several_short_rows",
    "several_long_rows": "vectors.b06_several_long_rows",
    "several_staged_rows": "vectors.b07_several_staged_rows",
    "several_rows_in_shares": "vectors.b08_several_rows_in_shares",
    "list_rows": "lists.b01_list_rows",
    "list_columns": "lists.b02_list_columns",
    "list_in_order": "lists.b03_list_in_order",
}


def get(name: str) -> Kernel:
    """The kernel called `name`; a ValueError that lists the known ones otherwise."""
    if isinstance(name, str) and name in BATCHED:
        module = importlib.import_module(f"{__name__}.{BATCHED[name]}")
        kernel: Kernel = module.KERNEL
        return kernel
    # Not "name in REGISTRY", which imports the kernel's file and takes its errors for an answer.
    if not isinstance(name, str) or name not in list(REGISTRY):
        raise ValueError(f"no kernel {shown(name)}; known kernels: {', '.join(REGISTRY)}")
    return REGISTRY[name]

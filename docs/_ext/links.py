"""Links that lead somewhere on GitHub and in the built pages alike.

GitHub knows no directive and no role of Sphinx. So links in the pages of the repository are those
of Markdown, and a kernel's name leads to its file, which has its lesson. When Sphinx reads a page,
:func:`for_sphinx` lets such a link lead to the kernel's page, and takes the directives out of the
comments that hide them from GitHub.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from pathlib import Path

from kernel_pages import DOCS, TOP, source_of

#: A role with the words before its target, if it has any.
ROLE = re.compile(r"\{(doc|ref|py:\w+)\}`(?:([^`<]*?)\s*<([^`>]+)>|([^`<]+))`")
CODE = re.compile(r"^( *)```.*?^\1``` *$", re.M | re.S)
HIDDEN = re.compile(r"^<!-- sphinx\n(.*?)\n-->$", re.M | re.S)
#: Links to a file of Python code, and to a figure on another page.
TO_CODE = re.compile(r"\]\((?:\.\./)*(gemv/[\w/]+\.py)(?:#([\w.-]+))?\)")
TO_FIGURE = re.compile(r"\]\([\w/.]+\.md#([\w-]+)\)")


@functools.cache
def files() -> dict[str, Path]:
    """The file of each kernel."""
    from gemv.kernels import BATCHED, REGISTRY

    found = {name: source_of(kernel) for name, kernel in REGISTRY.items()}
    folder = TOP / "gemv" / "kernels"
    return found | {
        name: folder / f"{module.replace('.', '/')}.py" for name, module in BATCHED.items()
    }


def plain(page: Path, text: str) -> str:
    """The text of a page with a link of Markdown for each role of Sphinx outside of code."""
    pieces, at = [], 0
    for code in CODE.finditer(text):
        pieces += [ROLE.sub(functools.partial(_link, page), text[at : code.start()]), code.group()]
        at = code.end()
    return "".join([*pieces, ROLE.sub(functools.partial(_link, page), text[at:])])


def _link(page: Path, found: re.Match) -> str:
    role, words, named, alone = found.groups()
    target, anchor = named or alone, ""
    if role == "doc":
        path = (DOCS if target.startswith("/") else page.parent) / f"{target.strip('/')}.md"
        file = files().get(path.stem.rpartition("-")[2], path)  # a kernel's page is made from it
        words = words or title_of(path)
    elif role == "ref":
        if target not in files():
            raise ValueError(f"{page.name}: {found.group()} names no kernel")
        file, words = files()[target], words or f"`{target}`"
    else:
        file, words, anchor = file_of(target), f"`{words or target}`", f"#{target}"
    where = Path(os.path.relpath(file, page.parent)).as_posix()
    return f"[{words}]({where}{anchor})"


def title_of(page: Path) -> str:
    """The heading of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.M)
    if found is None:
        raise ValueError(f"{page} has no heading")
    return found.group(1)


def file_of(name: str) -> Path:
    """The file that defines a public name, ``gemv.name`` or a class of a module."""
    module, _, attribute = name.rpartition(".")
    value = inspect.unwrap(getattr(importlib.import_module(module), attribute))
    return Path(inspect.getsourcefile(value) or "")


def for_sphinx(text: str) -> str:
    """The text of a page of the repository as Sphinx should read it."""

    def label(found: re.Match) -> str:
        path, anchor = found.groups()
        name = anchor or Path(path).stem.partition("_")[2]
        return f"](#{name})"

    text = HIDDEN.sub(r"\1", text)
    return TO_FIGURE.sub(r"](#\1)", TO_CODE.sub(label, text))

"""Print, as constraints for pip, the lowest version of everything that pyproject.toml names.

    python .ci/lowest.py cu13 test >lowest.txt
    pip install --constraint lowest.txt 'gemv[cu13,test]'

The arguments are extras. What counts is the highest of the lower bounds that hold for this Python.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

# The lowest CUDA that numba-cuda takes; its own metadata says only which major version.
CUDA = {
    "cu12": ["cuda-toolkit==12.3.*"],
    "cu13": ["cuda-toolkit==13.0.*", "nvidia-nvjitlink==13.0.*"],
}


def lines_of(project: dict, extra: str) -> list[str]:
    """The requirements of an extra, with those of the extras of ours that it names."""
    lines = []
    for line in project["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            lines += [each for name in requirement.extras for each in lines_of(project, name)]
        else:
            lines.append(line)
    return lines


def lowest(pyproject: Path, extras: list[str]) -> dict[str, Version]:
    """The lowest version of each distribution, by name."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += lines_of(project, extra)
    found: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        if not bounds:
            sys.exit(f"pyproject.toml: {requirement} has no lowest version")
        name = canonicalize_name(requirement.name)
        found[name] = max([*bounds, *([found[name]] if name in found else [])])
    return found


if __name__ == "__main__":
    versions = lowest(Path(__file__).parents[1] / "pyproject.toml", sys.argv[1:])
    print(*(f"{name}=={version}" for name, version in versions.items()), sep="\n")
    print(*(line for extra in sys.argv[1:] for line in CUDA.get(extra, [])), sep="\n")

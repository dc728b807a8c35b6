"""Look into a wheel and an sdist: is all inside that has to be, and is the metadata right?

    python .ci/supply.py dist

The wheel is to be one that was built from that sdist, as ``python -m build`` does: then whatever
the sdist lacks, the wheel lacks too.
"""

import email
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from lowest import lines_of
from packaging.requirements import Requirement

TOP = Path(__file__).parents[1]


def inside(folder: str, *suffixes: str) -> set[str]:
    """Files of the tree, as paths from its top."""
    return {
        path.relative_to(TOP).as_posix()
        for path in (TOP / folder).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def requirements(lines: list[str], marker: str = "") -> set[Requirement]:
    """Requirements, with a further condition on each."""
    made = set()
    for line in lines:
        name, _, own = (part.strip() for part in line.partition(";"))
        both = f"({own}) and {marker}" if own and marker else own or marker
        made.add(Requirement(f"{name}; {both}" if both else name))
    return made


def complaints(dist: Path) -> list[str]:
    """What is wrong, in a line each."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wrong = []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
        code = archive.read("gemv/__init__.py").decode()
        tags = archive.read(metadata_name.replace("METADATA", "WHEEL")).decode()
    with tarfile.open(sdist) as archive:
        # each path begins with name-version/
        packed = {name.partition("/")[2] for name in archive.getnames()}

    package = inside("gemv", ".py", ".toml", ".jsonl", ".cells", ".typed")
    kinds = ("toml", "jsonl", "cells")
    machines = [f"gemv/selection/machines/nvidia-h200.{kind}" for kind in kinds]
    machines.append("gemv/selection/machines/nvidia-h100-80gb-hbm3.cells")
    for needed in ("gemv/py.typed", *machines):
        if needed not in package & names:
            wrong.append(f"{wheel.name} lacks {needed}")
    wrong += [f"{wheel.name} lacks {name}" for name in sorted(package - names)]
    info = metadata_name.partition("/")[0]
    strangers = {n for n in names - package if not n.startswith(info + "/")}
    wrong += [f"{wheel.name} should not hold {name}" for name in sorted(strangers)]
    if not any(name.startswith(info) and name.endswith("LICENSE") for name in names):
        wrong.append(f"{wheel.name} lacks its LICENSE")
    if "Tag: py3-none-any" not in tags:
        wrong.append(f"{wheel.name} is not for every Python 3 on every platform")

    wanted = package | inside("tests", ".py") | inside("benchmarks", ".py")
    wanted |= inside("docs/course", ".md")
    for written in ("rungs", "beyond"):  # pages that a build of the docs writes
        wanted -= inside(f"docs/course/{written}", ".md")
    wanted |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"}
    wrong += [f"{sdist.name} lacks {name}" for name in sorted(wanted - packed)]

    expected = {
        "Name": project["name"],
        "Summary": project["description"],
        "License-Expression": project["license"],
        "Description-Content-Type": "text/markdown",
    }
    for field, value in expected.items():
        if metadata[field] != value:
            wrong.append(f"METADATA: {field} is {metadata[field]!r}, not {value!r}")
    if metadata["Requires-Python"] != project["requires-python"]:
        wrong.append(f"METADATA: Requires-Python is {metadata['Requires-Python']!r}")
    if f'__version__ = "{metadata["Version"]}"' not in code:
        wrong.append(f"METADATA: Version {metadata['Version']} is not gemv.__version__")
    if set(metadata.get_all("Classifier", [])) != set(project["classifiers"]):
        wrong.append("METADATA: other classifiers than pyproject.toml")
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    if metadata.get_payload(decode=True).decode().strip() != readme.strip():
        wrong.append("METADATA: the description is not README.md")
    extras = project["optional-dependencies"]
    needs = requirements(project["dependencies"])
    for extra in extras:
        needs |= requirements(lines_of(project, extra), f"extra == '{extra}'")
    said = {Requirement(line) for line in metadata.get_all("Requires-Dist", [])}
    wrong += [f"METADATA lacks Requires-Dist: {each}" for each in sorted(map(str, needs - said))]
    wrong += [f"METADATA should not require {each}" for each in sorted(map(str, said - needs))]
    if set(metadata.get_all("Provides-Extra", [])) != set(extras):
        wrong.append("METADATA: other extras than pyproject.toml")
    if not wrong:
        print(f"{wheel.name}: {len(names)} files; {sdist.name}: {len(packed)}; metadata right")
    return list(dict.fromkeys(wrong))


if __name__ == "__main__":
    found = complaints(Path(sys.argv[1]))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))

"""Which tests of a run ran, and why others were skipped: CI compares the runs of its jobs."""

from __future__ import annotations

import json
import tempfile
from typing import Any


def write(folder: str, reports: dict[str, list[Any]]) -> None:
    """Write a file of its own into `folder`, from the reports that pytest's summary is made of."""
    ran = [
        report.nodeid
        for kind in ("passed", "failed", "error", "xfailed", "xpassed")
        for report in reports.get(kind, [])
    ]
    skipped = {
        report.nodeid: report.longrepr[2].removeprefix("Skipped: ")
        for report in reports.get("skipped", [])
    }
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=folder, suffix=".json", delete=False
    ) as file:
        json.dump({"ran": ran, "skipped": skipped}, file)

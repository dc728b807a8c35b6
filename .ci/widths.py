"""How the built pages fit a phone and a desktop, measured in a browser.

    python .ci/widths.py [docs/_build/html]

Prints for each page its height at 390 and at 1280 pixels of width, and each thing on it that can
be scrolled sideways, by its kind and its width. Exit status 1 if a page or a table scrolls
sideways, or if a page that is read as a whole is 6,000 pixels high or more at either width.
Code may scroll. Needs Chromium, and the pages that ``make docs`` builds.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
WIDTHS = (390, 1280)
HIGHEST = 6000
#: Lists in which a reader looks something up.
LISTS = {
    "cells.html", "changelog.html", "course/ideas.html", "genindex.html", "problems.html",
    "promises.html", "reference.html",
}  # fmt: skip
#: Loads a page after the other in a frame of each width and writes down what it measures.
SCRIPT = """
const found = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.src = page;
  const loaded = new Promise(done => frame.onload = done);
  document.body.append(frame);
  await loaded;
  const inside = frame.contentDocument;
  inside.documentElement.style.overflowY = "auto";
  const wide = [];
  for (const each of inside.querySelectorAll("*")) {
    const style = frame.contentWindow.getComputedStyle(each);
    const scrolls = each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0
      && ["auto", "scroll"].includes(style.overflowX);
    if (scrolls && each.closest("article"))
      wide.push([each.querySelector("table") ? "table" : each.tagName.toLowerCase(),
                 each.scrollWidth, each.clientWidth, each.innerText.slice(0, 40)]);
  }
  const root = inside.documentElement;
  found.push({page, width, height: root.scrollHeight, page_width: root.scrollWidth, wide});
  frame.remove();
}
(async () => {
  for (const page of PAGES) for (const width of WIDTHS) await measure(page, width);
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
})();
"""


def measured(folder: Path) -> list[dict]:
    """Height, width and what scrolls of each page at each width."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("chromium is not installed")
    pages = [path.as_uri() for path in sorted(folder.rglob("*.html")) if path.name != "search.html"]
    with tempfile.TemporaryDirectory() as home:
        script = f"const PAGES = {json.dumps(pages)}, WIDTHS = {list(WIDTHS)};{SCRIPT}"
        frame = Path(home) / "frame.html"
        frame.write_text(f"<body><script>{script}</script></body>", encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
            "--allow-file-access-from-files", "--virtual-time-budget=600000",
            f"--user-data-dir={home}/profile", "--dump-dom", frame.as_uri(),
        ]  # fmt: skip
        environment = {**os.environ, "HOME": home}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    if text is None:
        raise RuntimeError(f"the browser measured nothing: {done.stderr.strip()[-300:]}")
    found = json.loads(html.unescape(text.group(1)))
    for row in found:
        row["page"] = Path(row["page"].removeprefix("file://")).relative_to(folder).as_posix()
    return found


def faults(row: dict) -> list[str]:
    """What is wrong with a page at a width."""
    found = []
    if row["page_width"] > row["width"]:
        found.append(f"the page is {row['page_width']} pixels wide")
    found += [f"a table of {wide} pixels" for kind, wide, *_ in row["wide"] if kind == "table"]
    if row["height"] >= HIGHEST and row["page"] not in LISTS:
        found.append(f"{row['height']} pixels high")
    return found


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else TOP / "docs" / "_build" / "html").resolve()
    rows = measured(folder)
    wrong = 0
    for row in sorted(rows, key=lambda row: (-row["width"], -row["height"])):
        print(f"{row['width']:5} {row['height']:6}  {row['page']}")
        for kind, wide, room, text in row["wide"]:
            print(f"              {kind} of {wide} in {room}: {' '.join(text.split())}")
        for fault in faults(row):
            print(f"              WRONG: {fault}")
            wrong += 1
    print(f"{len(rows)} pages and widths, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

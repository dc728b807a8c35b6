"""``make pages-in-a-browser`` finds each fault that is planted in a page, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"
pytestmark = pytest.mark.skipif(not CI.exists(), reason="no part of a source distribution")

BOTH = (390, 1280)
#: A page without a fault: dark and light, with a table, a drawing and code that scrolls.
SOUND = """<!doctype html><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root {{ color-scheme: light dark; --ink: #111; --paper: #fff; }}
  @media (prefers-color-scheme: dark) {{ :root {{ --ink: #eee; --paper: #111; }} }}
  body {{ font: 16px/1.5 sans-serif; color: var(--ink); background: var(--paper); margin: 8px; }}
  pre, div {{ overflow-x: auto; }} img {{ width: 300px; }} {style}
</style>
<h1>A page</h1><p>With words.</p><pre>{line}</pre>
<div><table><tr><td>cell</td></tr></table></div><img src="drawing.svg" alt="a drawing">{more}
"""
DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" width="400" height="200" viewBox="0 0 400 200">
{texts}</svg>
"""
#: As Matplotlib draws a text: a group with a comment, and letters of 10 units by their scale.
TEXT = """<g id="text_{name}"><!-- {name} -->
<g transform="translate({x} {y}) {turn}scale({size} -{size})"><path d="M 0 0 H 600 V 80 H 0 Z"/></g>
</g>
"""


def text(name, x, y, size=0.1, turn=""):
    return TEXT.format(name=name, x=x, y=y, size=size, turn=turn and f"rotate({turn}) ")


@pytest.fixture(scope="module")
def pages():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CI))
        spec = importlib.util.spec_from_file_location("pages_in_a_browser", CI / "pages.py")
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        yield made
        sys.modules.pop("browser")


@pytest.fixture(scope="module")
def browser(pages):
    program = pages.installed()
    if program is None:
        pytest.skip("needs Chromium")
    with pages.Browser(program) as browser:
        yield browser


def written(folder, style="", more="", drawing=""):
    (folder / "drawing.svg").write_text(DRAWING.format(texts=drawing or text("a", 10, 100)))
    page = folder / "page.html"
    page.write_text(SOUND.format(style=style, more=more, line="code " * 100), encoding="utf-8")
    return page


def paragraph(words, style):
    return {"more": f"<p style='{style}'>{words}</p>"}


#: A fault by its name: what makes it, what is said of it, and at which widths.
FAULTS = {
    "none": ({}, "", ()),
    "wide": (paragraph("wide", "width: 1300px"), "the page is 1308 pixels wide", BOTH),
    "table": ({"style": "td { min-width: 500px }"}, "a table of 506 pixels in 374: cell", (390,)),
    "high": (paragraph("high", "height: 6000px"), "the page is 6", BOTH),
    "folded": (
        {"more": "<details>" + paragraph("wide and high", "width: 1300px; height: 6000px")["more"]},
        "the page is 1308 pixels wide", BOTH,
    ),
    "on top": (
        paragraph("On top", "position: absolute; top: 30px; left: 20px"),
        '"A page" lies on "On top"', BOTH,
    ),
    "cut": (
        paragraph("Long words", "width: 60px; overflow: hidden; white-space: nowrap"),
        "cut off: Long words", BOTH,
    ),
    "pale": (paragraph("Pale words", "color: #888"), "faint, contrast 3.5: Pale words", BOTH),
    "dark": ({"style": "p { color: #111 }"}, "faint, contrast 1: With words.", BOTH),
    "small": (paragraph("Small words", "font-size: 8px"), "8.0 pixels: Small words", BOTH),
    "letters": (
        {"drawing": text("a", 10, 100, size=0.072)}, "drawing.svg: letters of 5.4 pixels", BOTH,
    ),
    "no picture": ({"more": "<img src='gone.png' alt='a picture'>"}, "gone.png: not there", BOTH),
    "no words": ({"more": "<img src='drawing.svg'>"}, "drawing.svg: no text in its place", BOTH),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(pages, browser, tmp_path, name):
    planted, said, widths = FAULTS[name]
    page = written(tmp_path, **planted)
    for _, width, _, faults in pages.looked(browser, {"page.html": page}, None):
        assert len(faults) == (width in widths), (width, faults)
        assert all(fault.startswith(said) for fault in faults), (width, faults)


def test_code_may_scroll_and_lists_may_be_long(pages, browser, tmp_path):
    page = written(tmp_path, more="<p style='height: 6000px'>high</p>")
    (name,) = sorted(pages.LISTS)[:1]
    for _, _, seen, faults in pages.looked(browser, {name: page}, tmp_path / "pictures"):
        assert faults == [] and seen["height"] > 6000
        assert [kind for kind, *_ in seen["scrolls"]] == ["pre"]
    kept = sorted(path.parent.name for path in (tmp_path / "pictures").rglob("*.png"))
    assert kept == sorted(
        f"{width}-{kind}" for width in BOTH for kind in ("dark", "folded", "light")
    )


def test_texts_of_a_drawing_neither_meet_nor_leave_it(pages, browser, tmp_path):
    # Turned by half a right angle, these two lie beside each other, though their bounds meet.
    turned = text("c", 200, 100, turn="45") + text("d", 230, 100, turn="45")
    cases = {
        text("a", 10, 20) + text("b", 10, 40) + turned: [],
        text("a", 10, 20) + text("b", 40, 22): ['"a" lies on "b"'],
        text("a", 350, 20): ['"a" leaves the drawing'],
        text("a", 10, -2): ['"a" leaves the drawing'],
        text("c", 200, 100, turn="45") + text("d", 205, 100, turn="45"): ['"c" lies on "d"'],
    }
    for texts, said in cases.items():
        written(tmp_path, drawing=texts)
        drawings = [tmp_path / "drawing.svg"]
        assert list(pages.looked_at_drawings(browser, drawings)) == [("drawing.svg", said)]


def test_the_status_is_that_of_the_pages(pages, browser, tmp_path, capsys):
    assert pages.main([str(tmp_path)]) == 1
    assert "run make docs" in capsys.readouterr().err
    written(tmp_path, style="p { color: #999 }")
    assert pages.main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "WRONG: faint, contrast 2.8: With words." in told and "2 pages, 0 drawings: 2" in told


def test_without_a_browser_nothing_is_looked_at(pages, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pages, "installed", lambda: None)
    assert pages.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no page was looked at: there is no Chromium")

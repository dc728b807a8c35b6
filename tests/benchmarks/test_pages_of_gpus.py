"""Pages made from results of several GPUs: each figure under its GPU, the reference first."""

from __future__ import annotations

import json

import pytest
from helpers.programs import program
from helpers.results import timed_grid, timed_lists

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def grid_of(device, **changes):
    """Made-up cells: on the H100 torch.mv takes ten times as long."""
    grid = timed_grid()
    grid.device = device
    for row in grid.rows:
        for name, value in changes.items():
            setattr(row, name, value)
        if device == H100:
            row.peers = {name: 10 * time for name, time in row.peers.items()}
    return grid


@pytest.fixture
def both():
    """Results as they are loaded: by file, the reference first."""
    return {"h200": grid_of(H200), "h100": grid_of(H100)}


def headings(text: str) -> list[str]:
    """The first line of each table."""
    lines = text.splitlines()
    return [line for line, rule in zip(lines, lines[1:], strict=False) if rule.startswith("| ---")]


def test_results_are_loaded_with_the_reference_first_from_folders_of_machines(tmp_path):
    pages = program("pages.grid_page")
    for name, device in (("h100/a", H100), ("h200/a", H200), ("h100/b", H100), ("a", "A GPU")):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        grid_of(device).store(path)
    found = pages.load(tmp_path)
    assert list(found) == ["h200/a", "a", "h100/a", "h100/b"]
    assert {gpu: len(grids) for gpu, grids in pages.of_gpus(found).items()} == {
        H200: 1, "A GPU": 1, H100: 2,
    }  # fmt: skip


def test_readme_has_tables_of_its_own_for_a_second_gpu(both):
    front = program("pages.readme_page")
    several = {"h200/v": grid_of(H200, vectors=2), "h100/v": grid_of(H100, vectors=2)}
    one = front.pays({"h200": both["h200"]}, {"h200": both["h200"]}, {"h200/v": several["h200/v"]})
    text = front.pays(both, both, several)
    assert one.startswith(f"**One product** on an {H200}")
    # What was there stays as it was, to the letter: no figure of the H100 is among its figures.
    before, _, after = text.partition(f"**On an {H100}**")
    assert before + after[after.index("**Programs") :] == one
    assert "a peer is faster in 0 of 24 cells; [docs/roofline_others.md]" in after
    assert "The maker promises 3.35 TB/s." in after
    assert len(set(headings(text))) == len(headings(text)) == len(headings(one)) + 2
    assert "| H100: A in memory | a side below 256 | drawn at random |" in after
    assert "| float32 | 10.00 (5.00) | 10.00 (5.00) |" in after
    assert "| float32 | 1.00 (0.50) | 1.00 (0.50) |" in before
    assert "| H100: vectors with one matrix | 2 |" in after

    random = front.pays({"h200": both["h200"]}, both, {}).partition(f"**On an {H100}**")[2]
    assert "[docs/roofline_others.md](docs/roofline_others.md) lists them." in random
    assert "| H100: A in memory | drawn at random |" in random and "one matrix |" not in random


def test_single_results_of_the_reference_come_before_others(tmp_path, monkeypatch):
    front = program("pages.readme_page")
    monkeypatch.setattr(front, "RESULTS", tmp_path)
    made = {
        "calls": lambda gpu: {"device": gpu},
        "shards": lambda gpu: {"devices": [0, 1], "names": [gpu, gpu]},
    }
    for folder, of in made.items():
        (tmp_path / folder).mkdir()
        for name, gpu in (("h100", H100), ("h200", H200)):
            (tmp_path / folder / f"{name}.json").write_text(json.dumps(of(gpu)))
        assert front.stored(folder) == of(H200)


def test_the_page_of_several_products_has_a_part_for_each_gpu(tmp_path, monkeypatch):
    several = program("pages.several_page")
    monkeypatch.setattr(several, "FOLDER", tmp_path)
    monkeypatch.setattr(several.ragged_part, "load", list)
    assert "make several" in several.page()
    monkeypatch.setattr(several.tiles_part, "part", list)
    for name, device in (("h200", H200), ("h100", H100)):
        (tmp_path / name).mkdir()
        grid_of(device, vectors=2).store(tmp_path / name / "vectors-2.json")
        headed = "\n### " in several.page()
        assert headed == (name == "h100"), "one GPU alone needs no heading"
    grid_of(H200, batch=64).store(tmp_path / "h200" / "batch-64.json")
    text = several.page()
    assert f"on an {H200} and on an {H100}, all arrays" in text and "27 cells, 0 wrong" in text
    vectors, batches = text.split("## One matrix and several vectors")[1].split("## Several mat")
    first, second = vectors.split(f"### {H100}")
    assert f"### {H200}" in first and "| float32 | 2 | 0.67 | 1.00 | 0.50 | 2 of 4 |" in first
    assert "| float32 | 2 | 0.90 | 10.00 | 5.00 | 0 of 4 |" in second
    assert "In no cell is a peer faster." in second
    assert "###" not in batches
    assert f"Versions, {H200}: gemv" in text and f"Versions, {H100}: gemv" in text


def test_lists_of_two_gpus_have_a_table_each(tmp_path):
    part = program("pages.ragged_part")
    for name, device in (("a", H100), ("b", H200)):
        found = timed_lists()
        found.device = device
        found.store(tmp_path / f"{name}.json")
    paragraphs = part.part(part.load(tmp_path))
    said = [text for text in paragraphs if text.startswith("A plan of")]
    assert [H200 in said[0], H100 in said[1], len(said)] == [True, True, 2]
    assert sum("| matrices, op |" in text for text in paragraphs) == 2


def test_the_roofline_has_sections_of_both_gpus_and_says_once_what_was_drawn(both):
    pages = program("pages.grid_page")
    text = pages.random_page(both)
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == [f"## Shapes drawn at random, on {gpu}" for gpu in (H200, H100)]
    assert text.count("m and n log-uniform") == 1
    text = pages.page(both)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(set(heads)) == len(heads) and f"## {H100} (h100)" in heads

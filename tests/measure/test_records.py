"""Shares, ratios and means of results, their file and their pictures."""

from __future__ import annotations

import pytest
from helpers.results import row, timed_grid

from gemv.measure import picture, records
from gemv.measure.ladder import Ladder, LadderRow
from gemv.measure.picture import title
from gemv.measure.records import GridResults, summary


def test_floor_is_the_fastest_of_the_run_and_the_ratio_is_to_the_fastest_peer():
    each = row(time_s=2e-3, plain_s=1.5e-3, peers={"torch.mv": 4e-3, "cuBLAS": 3e-3})
    assert each.floor_s == 1.5e-3 and each.share == 0.75
    assert each.peer == "cuBLAS" and each.ratio == 1.5
    assert each.rate(each.time_s) == pytest.approx(1500)
    quicker = row(time_s=1e-3, plain_s=1.5e-3)
    assert quicker.share == 1 and quicker.ratio is None and quicker.peer is None
    theirs = row(time_s=2e-3, plain_s=1.5e-3, peers={"torch.mv": 1e-3})
    assert theirs.share == 0.5 and theirs.ratio == 0.5
    assert row().share is None and row().floor_s is None


def test_summary_of_rows_counted_by_hand():
    rows = [
        row(time_s=2.0, plain_s=1.0, peers={"p": 8.0}),  # share 1/2, ratio 4
        row(time_s=1.0, plain_s=1.0, peers={"p": 1.0}),  # 1, 1
        row(time_s=1.0, plain_s=2.0, peers={"p": 0.5}),  # 1/2, 1/2
        row(time_s=1.0, plain_s=1.0),
        row(wrong="yes"),
    ]
    s = summary(rows)
    assert (s.cells, s.against, s.behind, s.ahead) == (4, 3, 1, 2)
    assert s.share == pytest.approx(0.25**0.25) and s.least_share == 0.5
    assert s.ratio == pytest.approx(2 ** (1 / 3)) and s.least_ratio == 0.5
    assert s.peer_share == pytest.approx((1 / 8 * 1 * 1) ** (1 / 3))
    assert records.worst(rows, "ratio", 2) == [rows[2], rows[1]]
    assert summary([]).share is None


def test_a_file_gives_back_what_was_stored(tmp_path):
    grid = GridResults(
        "A GPU", "cuda", {"torch": "9"}, 5, [row(time_s=1e-3, plain_s=1e-3), row(n=10)]
    )
    path = tmp_path / "grid.json"
    grid.store(path)
    assert GridResults.load(path) == grid
    assert len([line for line in path.read_text().splitlines() if '"m": 8' in line]) == 2
    assert list(tmp_path.iterdir()) == [path]
    assert GridResults.from_json(GridResults("A GPU", "cuda").to_json()).rows == []


def test_conjugates_are_no_part_of_the_means_of_others():
    rows = [row(op="N"), row(op="C"), row(op="T"), row(op="C", hot=True)]
    parts = list(records.groups(rows).values())
    assert parts == [[rows[0], rows[2]], [rows[1]], [rows[3]]]
    assert [title(part[0]).endswith("conjugate") for part in parts] == [False, True, True]


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    picture.plot_grid(timed_grid(), tmp_path / "grid.svg")
    text = (tmp_path / "grid.svg").read_text()
    assert text.count("<svg") == 1 and len(text) > 10_000
    with pytest.raises(ValueError, match="no time to draw"):
        picture.plot_grid(
            GridResults("simulator", "simulator", rows=[row()]), tmp_path / "none.png"
        )
    ladder = Ladder(8, 9, "s", "C", "N", "cuda", "A GPU", 324, ceiling_gb_per_s=4000.0)
    ladder.rows = [LadderRow("serial", 1, False, 1.0, 10.0, 0.01), LadderRow("x", 2, True)]
    picture.plot_ladder(ladder, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 5_000

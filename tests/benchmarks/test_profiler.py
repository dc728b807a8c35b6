"""What Nsight Compute says of the rungs, as the climb's pages store it."""

import argparse

import pytest
from helpers.programs import program

profiler = program("measure.profiler")
LAUNCHED = ("launched serial serial", "launched tile2d partial_sums combine")


def said(*rows):
    """Output of ncu: what the launching program prints, and the raw page, a row a launch."""
    headings = ["ID", "Kernel Name", *profiler.METRICS.values()]
    units = ["", "", *("Mbyte" if name == "read" else "" for name in profiler.METRICS)]
    lines = [",".join(f'"{value}"' for value in line) for line in (headings, units, *rows)]
    return "\n".join(["==PROF== Connected", *LAUNCHED, *lines])


def test_the_longest_launch_of_a_kernel_counts():
    text = said(
        ["0", "_ZN4gemv6serial", "9", "1.5", "1", "2", "10", "9", "0"],
        ["1", "_ZN4fill", "1", "1", "1", "1", "1", "1", "1"],
        ["2", "_ZN12partial_sums", "1,000", "50", "16", "1", "20", "5", "1"],
        ["3", "_ZN7combine", "3", "1", "1", "1", "1", "1", "1"],
    )
    serial, tile2d = profiler.parse(text, 2_000_000)
    assert serial["name"] == "serial" and tile2d["name"] == "tile2d"
    assert list(serial["metrics"].values()) == ["1", "1.00", "2%", "90%", "0%"]
    assert list(tile2d["metrics"].values()) == ["16", "0.50", "50%", "25%", "5%"]


def test_a_kernel_that_was_not_counted_is_named():
    with pytest.raises(ValueError, match="0 launches of tile2d, not 2"):
        profiler.parse(said(["0", "serial", "9", "1", "1", "2", "10", "9", "0"]), 1)
    with pytest.raises(ValueError, match="counted nothing"):
        profiler.parse("==ERROR== no permission", 1)


@pytest.mark.parametrize("order, name", [("C", "f32-64x32"), ("F", "f32F-64x32")])
def test_results_are_named_as_the_ladder_s(order, name):
    assert profiler.file_name(argparse.Namespace(shape="64x32", order=order)) == f"{name}.json"

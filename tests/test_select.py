import pytest

from gemv._measure import make_problem
from gemv._problem import DTYPES, Device
from gemv._select import parse, select, table
from gemv.kernels import REGISTRY

DEVICE = Device("some GPU", (9, 0), 100)


def problem_of(access, rows, cols):
    order = "F" if access == "axpy" else "C"
    return make_problem(rows, cols, DTYPES["s"], order, "N")


def corner(row):
    """Rows and columns that this row's conditions just admit."""
    wanted = row.conditions
    rows = wanted.get("rows_min", min(wanted.get("rows_max", 3000), 3000))
    cols = wanted.get("cols_min", min(wanted.get("cols_max", 3000), 3000))
    return wanted.get("access", "dot"), rows, cols


def test_every_row_is_reached_at_its_own_threshold():
    for row in table():
        access, rows, cols = corner(row)
        chosen = select(problem_of(access, rows, cols), DEVICE)
        assert (chosen.kernel.name, chosen.reason) == (row.kernel, row.reason)


def test_one_step_past_a_threshold_another_row_takes_over():
    for row in table():
        access, rows, cols = corner(row)
        beyond = {
            "rows_min": (rows - 1, cols),
            "cols_min": (rows, cols - 1),
            "rows_max": (row.conditions.get("rows_max", 0) + 1, cols),
            "cols_max": (rows, row.conditions.get("cols_max", 0) + 1),
        }
        for condition, (m, n) in beyond.items():
            if condition in row.conditions:
                assert select(problem_of(access, m, n), DEVICE).reason != row.reason


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("rows, cols", [(1, 1), (1, 10**9), (10**9, 1), (4096, 4096), (7, 13)])
def test_every_shape_finds_a_kernel_that_is_not_there_to_teach(access, rows, cols):
    choice = select(problem_of(access, rows, cols), DEVICE)
    assert not choice.kernel.teaching and choice.kernel.same_bits
    for launch in choice.geometry.launches:
        assert launch.grid[0] < 2**31 and launch.grid[1] <= 65535 and launch.grid[2] == 1
        assert 1 <= launch.threads_per_block <= 1024


@pytest.mark.parametrize("kernel", REGISTRY.values(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("rows, cols", [(1, 1000), (2**33, 1), (2**20, 7), (3, 1024)])
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_geometry_stays_within_the_hardware(kernel, rows, cols, access):
    problem = problem_of(access, rows, cols)
    if kernel.accepts(problem):
        with pytest.raises(ValueError, match="refuses this problem"):
            select(problem, DEVICE, kernel.name)
        return
    geometry = select(problem, DEVICE, kernel.name).geometry
    for launch in geometry.launches:
        assert 1 <= launch.grid[0] < 2**31 and 1 <= launch.grid[1] <= 65535
        assert 1 <= launch.threads_per_block <= 1024


def test_forced_kernel_and_knobs():
    choice = select(problem_of("dot", 5, 5), DEVICE, "block_per_row", {"THREADS_PER_BLOCK": 64})
    assert choice.kernel.name == "block_per_row"
    assert choice.knobs["THREADS_PER_BLOCK"] == 64
    assert choice.geometry.launches[0].block == (64, 1, 1)


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="no kernel 'warp'.*warp_per_row"):
        select(problem_of("dot", 5, 5), DEVICE, "warp")
    with pytest.raises(ValueError, match="no knob WARPS.*WARPS_PER_BLOCK"):
        select(problem_of("dot", 5, 5), DEVICE, "warp_per_row", {"WARPS": 1})


LAST = '[[row]]\nkernel = "last_block"\nreason = "rest"\n'


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('[[row]]\nkernel = "nothing"\nreason = ""\n' + LAST, "no kernel 'nothing'"),
        ('[[row]]\nkernel = "atomics"\nreason = ""\n' + LAST, "cannot be selected"),
        ('[[row]]\nkernel = "serial"\nreason = ""\nrow_min = 3\n' + LAST, "unknown field row_min"),
        ('[[row]]\nkernel = "serial"\nreason = ""\nrows_min = 3\n', "must accept every problem"),
        (
            '[[row]]\nkernel = "last_block"\nreason = ""\nknobs = { X = 1 }\n' + LAST,
            "cannot be selected with",
        ),
    ],
)
def test_a_bad_table_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse(text)

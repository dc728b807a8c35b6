# Every target sets up what it needs: a virtual environment in $(VENV) with the package installed in
# place. Override on the command line, for instance  make test PYTHON=python3.12 CUDA=cu12

VENV ?= .venv
# the first Python that is new enough; a name may exist and still not run, so each is tried
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# CUDA libraries that the driver supports: cu12 for a driver of CUDA 12, else cu13
CUDA ?= $(shell nvidia-smi 2>/dev/null | grep -q 'CUDA Version: 12\.' && echo cu12 || echo cu13)
# processes of the test suite; they share one GPU where there is one
JOBS ?= 2
# of the commit that a benchmark result belongs to
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
# that measured it
MACHINE ?= gpu
# empty unless MACHINE was given
NAMED := $(if $(filter file,$(origin MACHINE)),,--machine $(MACHINE))

BIN := $(VENV)/bin

.PHONY: help demo test kernel lint types dev docs pages-in-a-browser bench bench-publish bench-compare bench-smoke ladder grid random several calls fit table soak mutants clean

help:
	@echo "make demo   install, then gemv on sample files and the ladder of kernels"
	@echo "make test   install, then the whole test suite"
	@echo "make docs   the course and the user guide, in docs/_build/html/index.html"
	@echo "make lint | types | pages-in-a-browser | bench | bench-publish | bench-compare | bench-smoke | ladder | grid | random | several | calls | fit | table | soak | mutants | clean"

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "gemv needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# one stamp per set of extras: installed anew when the dependencies change
$(VENV)/installed-%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(CUDA),$(subst +,$(comma),$*)]'
	@touch $@
comma := ,

TEST := $(VENV)/installed-test
DEV := $(VENV)/installed-test+bench+dev
DRAW := $(VENV)/installed-test+plot
FIT := $(VENV)/installed-test+fit

demo: $(TEST)
	$(BIN)/python docs/examples/demo.py

test: $(TEST)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

# what the kernel NAME still lacks, and whether it is right
kernel: $(TEST)
	$(BIN)/python -m pytest -n $(JOBS) -k '$(NAME)' tests/kernels tests/language tests/selection

dev: $(DEV)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(DEV)
	$(BIN)/mypy

# figures, tables and a page for each kernel are made anew from the tree; a warning is an error
docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html \
	    -d docs/_build/doctrees docs docs/_build/html

# how the pages that `make docs` built fit a phone and a desktop, in Chromium; without one it says so.
# ARGS="--pictures build/pages" keeps a picture of each
pages-in-a-browser: $(VENV)/installed-docs
	$(BIN)/python .ci/pages.py $(ARGS)

# a part of a point; all of one takes some minutes on a GPU. SUITE=constants for the homes of alpha,
# beta and x
SUITE ?=

# a point of the history on a GPU: kept in benchmarks/results/history under COMMIT (all 40 digits; where
# git does not know it, DATE=seconds of the commit as well) and MACHINE, a fixed name
bench: $(DEV)
	$(BIN)/python -m benchmarks.history.point --machine $(MACHINE) --commit '$(COMMIT)' \
	    $(if $(DATE),--date $(DATE)) $(if $(SUITE),--bench '$(SUITE)') $(ARGS)

# the pages of the history, in .asv/html
bench-publish: $(DEV)
	$(BIN)/asv publish

# the two newest points of MACHINE, or OLD= and NEW= files; without any of these, of the machine with
# this GPU or with the newest point. Fails if a figure is worse by more than its spread, or is gone
bench-compare: $(DEV)
	$(BIN)/python -m benchmarks.history.compare $(if $(OLD),$(OLD) $(NEW),$(NAMED)) $(ARGS)
	$(BIN)/python -m benchmarks.history.since

# the same suite, small and never stored: proves it alive without a GPU; then, whether a point is due
bench-smoke: $(DEV)
	$(BIN)/python -m benchmarks.history.point --smoke $(ARGS)
	$(BIN)/python -m benchmarks.history.since

# the README's figures, on a GPU: two dtypes, one square, one tall and one wide shape
LADDER := 8192x8192 1048576x64 64x1048576
ladder: $(TEST)
	@mkdir -p benchmarks/results/ladder
	@for dtype in f32 f64; do for shape in $(LADDER); do \
	    $(BIN)/python -m gemv ladder --m $${shape%x*} --n $${shape#*x} --dtype $$dtype \
	        --json benchmarks/results/ladder/$$dtype-$$shape.json || exit 1; \
	done; done
	$(BIN)/python -m benchmarks.pages.ladder_table --write

# candidates over cells drawn evenly, on a GPU, every time kept, which goes on where it stopped; then the
# numbers of the formula for this GPU, and how far its choices are from the best. FILE=nvidia-h200, say,
# also writes the machine's file of that name. LIKE=h200 is for a GPU that has the choices of another one:
# a short campaign changes some of them, and FILE=nvidia-h100-80gb-hbm3, say, writes the changes
FILE ?=
LIKE ?=
FITTED = benchmarks/results/fit/$(MACHINE)
fit: $(FIT)
	@mkdir -p benchmarks/results/fit
	$(BIN)/python -m benchmarks.fit.campaign $(FITTED).json $(ARGS)
ifeq ($(LIKE),)
	$(BIN)/python -m benchmarks.fit.fit $(FITTED).json \
	    --json $(FITTED)-model.json $(if $(FILE),--machine $(FILE) --all)
else
	$(BIN)/python -m benchmarks.fit.alike $(FITTED).json --of benchmarks/results/fit/$(LIKE).json \
	    $(addprefix --gate ,$(wildcard benchmarks/results/gate/$(MACHINE)-times.json)) \
	    --json $(FITTED)-alike.json $(if $(FILE),--write $(FILE))
endif

# our calls, the floor and cuBLAS over a grid of shapes, on a GPU, and what is made from that; goes on
# where it stopped, so remove the file to measure again. ARGS="--parts cold,hot" for a part
grid: $(DRAW)
	$(BIN)/python -m benchmarks.measure.all_parts benchmarks/results/grid/$(MACHINE).json $(ARGS)
	$(BIN)/python -m benchmarks.pages.readme_page --write

# shapes that nobody chose, on a GPU; goes on where it stopped. After a change of constants remove the
# file and take another SEED, which none of them was chosen with
SEED := 20261122
random: $(DRAW)
	@mkdir -p benchmarks/results/random
	$(BIN)/python -m gemv bench --random 400 --seed $(SEED) \
	    --json benchmarks/results/random/$(MACHINE).json --resume $(ARGS)

# what a call costs the host, beside the libraries installed, on a GPU
calls: $(TEST)
	@mkdir -p benchmarks/results/calls
	$(BIN)/python -m benchmarks calls --json benchmarks/results/calls/$(MACHINE).json

# the README's tables and picture, and the tables in the pages of docs, from benchmarks/results
table: $(DRAW)
	$(BIN)/python -m benchmarks.pages.ladder_table --write
	$(BIN)/python -m benchmarks.pages.readme_page --write
	$(BIN)/python -m benchmarks.pages.constants_page --write
	$(BIN)/python -m benchmarks.pages.memories_page --write
	$(BIN)/python -m benchmarks.pages.several_page --write
	$(BIN)/python docs/_ext/parts.py --write

# calls of several products: one matrix and 2, 4 and 8 vectors, then many matrices, then
# matrices of different sizes; on a GPU
VECTORS := 8192x8192,1048576x64,64x1048576,1000x1000,256x65536,100x100000,16x262144
several: $(TEST)
	@mkdir -p benchmarks/results/several/$(MACHINE) benchmarks/results/ragged
	for count in 2 4 8; do $(BIN)/python -m gemv bench --vectors $$count --shapes $(VECTORS) \
	    --dtypes s,d,c,b --ops N --order C,F --json benchmarks/results/several/$(MACHINE)/vectors-$$count.json || exit 1; done
	$(BIN)/python -m gemv bench --batch 65536 --shapes 5x5,16x16,17x17,32x32 --dtypes s,d,b \
	    --json benchmarks/results/several/$(MACHINE)/batch-65536.json
	$(BIN)/python -m gemv bench --batch 1310720 --shapes 5x5,8x8 --dtypes s,d,b \
	    --json benchmarks/results/several/$(MACHINE)/batch-1310720.json
	$(BIN)/python -m gemv bench --batch 1024 --shapes 128x128,129x129,256x256 --dtypes s,d,b \
	    --json benchmarks/results/several/$(MACHINE)/batch-1024.json
	$(BIN)/python -m gemv bench --ragged --json benchmarks/results/ragged/$(MACHINE).json --resume
	$(BIN)/python -m benchmarks.pages.several_page --write

# what a process survives, then a million calls of many kinds under load, compared bit for bit, which
# goes on where it stopped; then a minute of each layer: shards, and libraries that are installed
soak: $(TEST)
	@mkdir -p build
	$(BIN)/python -m pytest tests/load/test_load.py
	$(BIN)/python tests/load/soak.py --state build/soak.json $(ARGS)
	$(BIN)/python tests/load/soak_layers.py

# planted faults, one after the other, each against the tests that should notice it; goes on where it
# stopped. ARGS="--only kernels" for one list
mutants: $(TEST)
	$(BIN)/python tests/mutants/run.py $(ARGS)

clean:
	rm -rf $(VENV) .asv asv.local.conf.json build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf docs/_build docs/changelog.md docs/figures/out
	rm -rf docs/course/rungs docs/course/beyond docs/course/notebooks
	find gemv tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

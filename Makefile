# `make demo` and `make test` work on a machine that has Python 3.10 or later, a C++ compiler and make: both first
# build a virtual environment in .venv, with everything in it.
#
#   make demo      a model in three ways, side by side             RANKS=2 ARGS="--steps 50"
#                  or handwritten digits, where nothing is gained  MODEL=mlp|cnn
#   make check     what to run after each change, a minute: the linters and the quick tests
#   make test      a quarter of an hour: the linters, and of all
#                  tests those that stand for a kind: not what is
#                  left_to_ci, and of cases under mpirun @core_case  JOBS=2 PYTEST_ARGS="-m pure" GRAPHS=5
#   make test-all  every case, each by one plan, as CI does: an hour or more
#   make test-thorough  every case by each of its plans, operators in
#                  all forms, 200 random graphs: two hours
#   make lint      the linters alone
#   make format    let ruff sort imports and lay out the code
#   make docs      the site, with the reference, into build/site
#   make horovod   build Horovod into .venv
#   make venv      the environment alone                           PYTHON=python3 EXTRAS=dev
#   make clean     delete the environment and every build product
#   make help      these lines

PYTHON ?= python3
# Without `mpi`, which `dev` has in it, a machine's own MPI is used: EXTRAS=test,plot
EXTRAS ?= dev
RANKS ?= 2
MODEL ?= large_softmax
ARGS ?=
JOBS ?= 2
PYTEST_ARGS ?=
# Random graphs that are trained on four ranks; from 20 on all cases are tried, from 200 on by all plans
# (tests/effort.py).
GRAPHS ?= 5

VENV := .venv
STAMP := $(VENV)/.installed
# First on the path, so that mpirun, its compiler wrapper and python are the environment's own.
IN_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: venv demo check test test-all test-thorough lint kernels format docs horovod clean help

venv: $(STAMP)

$(STAMP): pyproject.toml setup.py
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing tensoropt[$(EXTRAS)] and TensorFlow into $(VENV): about a gigabyte, a minute on a fast line"
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[$(EXTRAS)]"
	touch $@

demo: $(STAMP)
	$(IN_VENV) $(if $(filter large_softmax,$(MODEL)),python examples/large_softmax.py --ranks $(RANKS),\
		tensoropt run -n $(RANKS) examples/digits.py --model $(MODEL)) $(ARGS)

# One pytest run, so that it ends with one summary. Two workers share the tests: one begins with those that start mpirun,
# the other one with the second half; who is done first takes over what the other has left, from the end. Jobs take
# turns (tests/mpi_support.py), so that no two of them fight for the cores.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	$(IN_VENV) TENSOROPT_TEST_GRAPHS=$(GRAPHS) python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

test-all:
	$(MAKE) --no-print-directory test GRAPHS=20

test-thorough:
	$(MAKE) --no-print-directory test GRAPHS=200

# A test that has become slow shows at the end.
check: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	$(IN_VENV) python -m pytest -n $(JOBS) --dist worksteal -m "pure and not slow or smoke" \
		--durations 5 --durations-min 2 $(PYTEST_ARGS)

# Once in a new tree; otherwise they are in the cache, and nothing is done.
kernels: $(STAMP)
	$(IN_VENV) python -m tests.compile_kernels

lint: $(STAMP)
	$(IN_VENV) ruff check .
	$(IN_VENV) ruff format --check .
	$(IN_VENV) mypy
	$(IN_VENV) lint-imports --no-logo

format: $(STAMP)
	$(IN_VENV) ruff check --fix .
	$(IN_VENV) ruff format .

# A warning is an error. The other variable keeps away a notice of mkdocs-material's about its successor.
docs: $(STAMP)
	$(IN_VENV) NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict --quiet
	@echo "build/site/index.html; with the search: python -m http.server --directory build/site"

horovod: $(STAMP)
	$(IN_VENV) python scripts/build_horovod.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n "s/^#   \(make\|  *\)/  \1/p" Makefile

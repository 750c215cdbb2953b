# `make demo` and `make test` work on a machine that has Python 3.10 or later, a C++ compiler and make: both first
# build a virtual environment in .venv, with everything in it.
#
#   make demo      train on the handwritten digits under mpirun    RANKS=4 MODEL=mlp|cnn ARGS="--steps 50"
#   make check     what to run after each change, a minute: the linters and the quick tests
#   make test      every check: the linters, then all tests        JOBS=2 PYTEST_ARGS="-m pure" GRAPHS=5
#   make lint      the linters alone
#   make format    let ruff sort imports and lay out the code
#   make horovod   build Horovod into .venv
#   make venv      the environment alone                           PYTHON=python3 EXTRAS=dev
#   make clean     delete the environment and every build product

PYTHON ?= python3
# Without `mpi`, which `dev` has in it, a machine's own MPI is used: EXTRAS=test,plot
EXTRAS ?= dev
RANKS ?= 4
MODEL ?= mlp
ARGS ?=
JOBS ?= 2
PYTEST_ARGS ?=
# Random graphs that are trained on four ranks. With 200 these alone take longer than all other tests.
GRAPHS ?= 5

VENV := .venv
STAMP := $(VENV)/.installed
# First on the path, so that mpirun, its compiler wrapper and python are the environment's own.
IN_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

CORES := $(shell getconf _NPROCESSORS_ONLN)
# Bash arithmetic is not to be had in /bin/sh everywhere, so the shell compares and divides.
THREADS = $(shell expr $(CORES) / $(RANKS) \| 1)

# What a single machine needs that a cluster does not. Open MPI 5 reads PRTE_*, 4 reads the OMPI_MCA_rmaps one; another
# MPI reads none of them. More ranks than cores share the cores, and a rank that waits must give its core away. As root,
# as in most containers, Open MPI starts nothing until it is told twice.
LOCAL_MPI = PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1 \
	$(shell test $(RANKS) -gt $(CORES) && echo OMPI_MCA_mpi_yield_when_idle=1) \
	$(shell test `id -u` -eq 0 && echo OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)

# By default glibc gives every large buffer back to the system at the end of its step, and the next step waits for the
# pages again. These thresholds (1 GiB and 4 GiB) let it keep them.
KEEP_PAGES = MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296

# The ranks share the machine's cores; TensorFlow would start as many threads as there are cores in each.
SHARE_CORES = TF_NUM_INTRAOP_THREADS=$(THREADS) OMP_NUM_THREADS=$(THREADS)

# At 2, TensorFlow reports it as an error that a machine has no graphics card. What goes wrong in Python is still raised.
QUIET_TF = TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-3}

.PHONY: venv demo check test lint kernels format horovod clean

venv: $(STAMP)

$(STAMP): pyproject.toml setup.py
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing tensoropt[$(EXTRAS)] and TensorFlow into $(VENV): about a gigabyte, a minute on a fast line"
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[$(EXTRAS)]"
	touch $@

demo: $(STAMP)
	$(IN_VENV) $(QUIET_TF) $(LOCAL_MPI) $(KEEP_PAGES) $(SHARE_CORES) \
		mpirun -n $(RANKS) python examples/digits.py --model $(MODEL) $(ARGS)

# One pytest run, so that it ends with one summary. Two workers share the tests: one begins with those that start mpirun,
# the other one with the second half; who is done first takes over what the other has left, from the end. Jobs take
# turns (tests/mpi_support.py), so that no two of them fight for the cores.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	$(IN_VENV) $(LOCAL_MPI) TENSOROPT_TEST_GRAPHS=$(GRAPHS) python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# A test that has become slow shows at the end.
check: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	$(IN_VENV) $(LOCAL_MPI) python -m pytest -n $(JOBS) --dist worksteal -m "pure and not slow or smoke" \
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

horovod: $(STAMP)
	$(IN_VENV) python scripts/build_horovod.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

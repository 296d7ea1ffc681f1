# pyfuser's commands. `make` alone lists them; every command sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PEERS := $(VENV)/peers-installed
# Two test processes: each runs kernels on all cores, so more processes gain little.  A thread that waits for others
# leaves its core to the other process, instead of asking again and again: 15 % less time.
WORKERS ?= 2
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n $(WORKERS)
# The device-independent test files.
EMULATED := $(addprefix tests/,test_engine.py test_calls.py test_plans.py test_everyday_programs.py \
	test_library_parts.py \
	frontend/test_frontend.py frontend/test_handles.py \
	schedule/test_schedules.py schedule/test_random_schedules.py \
	schedule/test_inner_outer_persistent.py schedule/test_scan_schedules.py schedule/test_both_ways.py \
	ops/test_pointwise_kernels.py ops/test_reductions.py ops/test_reads.py ops/test_fused_reads.py \
	ops/test_checks.py ops/test_no_alarms.py ops/test_scans.py \
	torch_compile/test_inputs.py torch_compile/test_running.py)
SOURCES := pyfuser tests benchmarks demo docs examples

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format golden emulate cubins fuzz bench bench-full bench-models zoo bench-gpu gpu gpu-kernels opdb show profile clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## train a small GPT, eager and compiled side by side, and generate text
	$(BIN)/python -m demo

test: lint ## ruff, mypy and all tests; PYTEST_ARGS="-k softmax" runs a subset
	$(PYTEST) $(PYTEST_ARGS)

test-long: $(STAMP) ## what `make test` leaves out: the same tests with more dtypes, sizes and devices
	$(PYTEST) --long -m long $(PYTEST_ARGS)

lint: $(STAMP) ## ruff (check and format) and mypy
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(STAMP) ## apply ruff's automatic fixes
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

golden: $(STAMP) ## rewrite the expected texts of the golden tests (then read the difference)
	$(BIN)/python -m pytest -q --long --update-golden $(PYTEST_ARGS)

fuzz: $(STAMP) ## random programs against eager; FUZZ_ARGS="--seconds 3600 --seeds 0:10000 --strict --fusions" (or --schedules)
	$(BIN)/python -m tests.programs --workers $(WORKERS) $(FUZZ_ARGS)

bench: $(PEERS) ## measure functions and call overhead against eager torch, Inductor, JAX and others; BENCH_ARGS="--cases softmax"
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-full: $(PEERS) ## the same for every function, size and dtype (hours)
	$(BIN)/python -m benchmarks --full $(BENCH_ARGS)

bench-models: $(STAMP) ## measure whole models; BENCH_ARGS="--models gpt2,vit --quick" runs a subset
	$(BIN)/python -m benchmarks.models $(BENCH_ARGS)

zoo: $(STAMP) ## training steps of 85 architectures; ZOO_ARGS="--names swin,mamba2 --check --inductor" runs a subset
	$(BIN)/python -m benchmarks.zoo $(ZOO_ARGS)

bench-gpu: $(STAMP) ## kernels on an NVIDIA GPU, into a file of its name; BENCH_ARGS="--minutes 60", --dry-run, --cases softmax
	$(BIN)/python -m benchmarks --device cuda $(BENCH_ARGS)

# AddressSanitizer's runtime must be in a process from its start.  Its reports of leaks, and of new and delete that don't
# match, are switched off: they would be about torch.  SANITIZE= runs without it, in two thirds of the time.
SANITIZE := 1
# libstdc++ comes with it: the runtime looks up what throws exceptions when it starts, before torch has loaded that.
SANITIZERS = LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0

emulate: $(STAMP) ## device-independent tests on emulated CUDA kernels, under AddressSanitizer and UBSan (g++; half an hour)
	$(if $(SANITIZE),$(SANITIZERS)) $(PYTEST) --long --emulate $(EMULATED) $(PYTEST_ARGS)

cubins: $(STAMP) ## the kernels of the same tests, and of the CUDA device's, to cubins by NVRTC for four architectures
	$(PYTEST) --long --emulate --nvrtc $(EMULATED) tests/test_emulated.py tests/devices/cuda \
		$(PYTEST_ARGS)

gpu: $(STAMP) ## the tests that need an NVIDIA GPU; they are skipped without one
	$(BIN)/python -m pytest -q -m gpu tests/devices/cuda/test_gpu.py $(PYTEST_ARGS)

# What a GPU can't do: fork, or give a host's memory back.
gpu-kernels: $(STAMP) ## the device-independent tests, their kernels launched on an NVIDIA GPU (minutes; PYTEST_ARGS="-n 8")
	$(BIN)/python -m pytest -q --long --emulate --on-gpu $(EMULATED) tests/devices/cuda/test_half_precision.py \
		tests/devices/cuda/test_automatic_schedules.py tests/devices/cuda/test_reads.py \
		-k "not fork and not needs_the_memory" $(PYTEST_ARGS)

opdb: $(STAMP) ## torch's operator database, all dtypes and samples (hours; resumes where it stopped)
	$(PYTEST) tests/torch_compile/opdb/all_samples.py \
		--tb=short --show-capture=no -W ignore \
		--opdb-record=build/opdb.jsonl --opdb-summary=benchmarks/results/opdb.txt $(PYTEST_ARGS)

show: $(STAMP) ## print a stage of a script's fusions: make show FILE=x.py [STAGE=kernel] [DEVICE=cpu] [ARGS="--n 8"]
	$(if $(FILE),,$(error show: expected a script, got none: make show FILE=docs/examples/softmax.py))
	$(BIN)/python -m pyfuser show $(FILE) $(if $(STAGE),--stage $(STAGE)) $(if $(DEVICE),--device $(DEVICE)) \
		$(if $(ARGS),-- $(ARGS))

profile: $(STAMP) ## count what a script's kernels do to a GPU's memory, emulated: make profile FILE=x.py [DEVICE=sm_90] [ARGS=...]
	$(if $(FILE),,$(error profile: expected a script, got none: make profile FILE=docs/examples/softmax.py))
	$(BIN)/python -m pyfuser profile $(FILE) $(if $(DEVICE),--device $(DEVICE)) \
		$(if $(ARGS),-- $(ARGS))

clean: ## remove everything that `make` created, including the environment
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch is installed first, in its exact version, so that no other package decides its version.
# editable_mode=compat puts this folder on the path: scripts anywhere then import pyfuser from it, not an empty
# package named after a folder next to them.  timm is installed without torchvision: see benchmarks/zoo/timm_alone.py.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pyfuser: expected Python 3.11 or newer, got `$(PYTHON) --version`; make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev,cuda,bench]' -c constraints.txt \
		--config-settings editable_mode=compat
	$(BIN)/python -m pip install --quiet --no-deps timm -c constraints.txt
	@touch $@

# What `make bench` compares with; a peer that has no build for this machine is left out of the tables.
$(PEERS): $(STAMP)
	for peer in jax numexpr openvino matplotlib; do \
		$(BIN)/python -m pip install --quiet $$peer -c constraints.txt || echo "make bench: goes on without $$peer"; done
	@touch $@

# Everything here builds its own environment in $(VENV) first; a stamp file makes the next call start at once.
#
#   make demo                                      prepares real data, writes it as Parquet, and trains on it
#   make demo DATA=/path/to/parquet TARGET=column  the same training on your own data
#   make demo FRAMEWORK=jax                        the same network in JAX; also tensorflow, keras
#   make demo-lm                                   trains a small GPT on Python's own documentation, stops it, resumes it
#   make demo-store                                samples from an S3 server into a store, and trains on the store
#   make test        the everyday tests             make test-all   also the slow tests and those that need Spark
#   make test-frameworks                           the recipes for Lightning, Accelerate, Transformers, Ray, JAX, TensorFlow and others
#   make test-hdfs                                 tests with a real HDFS of two processes; needs a JDK and a C compiler
#   make test-oldest the core tests, and those of video, with the oldest supported pyarrow, numpy and PyAV
#   make wheels      wheels for all platforms and a source distribution, in dist/; make test-wheel tests an installed wheel
#   make docs        the documentation site, in site/      make test-docs: checks its links, page weight and contrast
#   make lint        ruff and mypy                  make format     formats the code as lint expects it
#   make fuzz        kernels on damaged pages under gcc's sanitizers, for FUZZ_SECONDS (600), with seeds from FUZZ_SEED on
#   make bench       compares loaders               make clean      removes the environment, demo data and caches

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# Without --no-compile, pip compiles all modules of all packages; Python compiles those that are imported.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
TESTS ?= tests
# Four processes for two cores, because tests wait for processes, locks and time limits: with three, a quarter of the
# processor time is not used.
# Each file runs in one process, so its fixtures are made once; tests/conftest.py puts long files first.
PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder
# These start a Hadoop of two Java processes.
HDFS_TESTS := tests/source/test_hdfs.py tests/interop/test_hdfs_jobs.py
# The tests that run with the oldest and with other versions.
CORE_TESTS ?= $(addprefix tests/,common plan window dataset schema/test_schema.py collate/test_output.py decode/test_native.py \
	decode/test_routes.py read/test_split.py read/test_row_pages.py loader/test_exactly_once.py loader/test_resume.py \
	loader/test_rows.py write/test_writer.py)
BENCH ?= all
FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-lm demo-store test prepare-tests test-core test-oldest test-wheel wheels test-frameworks test-hdfs test-all docs test-docs lint format fuzz bench clean

help:
	@sed -n '3,16s/^# *//p' Makefile

# The pip that comes with Python 3.11 spends most of its processor time on comparing tags of files that it does not install.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) pip
	@touch $@

$(VENV)/demo $(VENV)/dev $(VENV)/frameworks $(VENV)/spark $(VENV)/all: $(VENV)/made pyproject.toml constraints.txt release/hatch_build.py parquet_loader/common/native/build.py $(wildcard parquet_loader/common/native/src/*.[ch] parquet_loader/common/native/src/*/*.[ch])

$(VENV)/demo:
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/dev:
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/demo $(VENV)/store-demo

# This adds packages to the installed project; to install it again would compile the kernels again.
$(VENV)/frameworks: $(VENV)/dev
	$(INSTALL) 'torch-parquet-loader[dev,frameworks]'
	@touch $@

$(VENV)/all:
	$(INSTALL) --editable '.[dev,spark,frameworks,docs]'
	@touch $@ $(VENV)/docs $(VENV)/frameworks $(VENV)/spark $(VENV)/dev $(VENV)/demo $(VENV)/store-demo

$(VENV)/demo-jax $(VENV)/demo-tensorflow $(VENV)/demo-keras: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[$(@F)]'
	@touch $@

FRAMEWORK ?= torch
DEMO_torch := demo
DEMO_jax := demo-jax
DEMO_tensorflow := demo-tensorflow
DEMO_keras := demo-keras
DEMO := $(DEMO_$(FRAMEWORK))
DEMO_MODULE := demo.train$(if $(filter-out torch,$(FRAMEWORK)),_$(FRAMEWORK))
ifneq ($(filter demo,$(MAKECMDGOALS)),)
$(if $(DEMO),,$(error FRAMEWORK=$(FRAMEWORK): expected torch, jax, tensorflow or keras))
endif

demo: $(VENV)/$(DEMO)
ifdef DATA
	$(PY) -m $(DEMO_MODULE) --data '$(DATA)' --target '$(TARGET)'
else
	$(PY) -m demo.prepare
	$(PY) -m $(DEMO_MODULE)
endif

$(VENV)/demo-lm: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[demo-lm]'
	@touch $@

demo-lm: $(VENV)/demo-lm
	$(PY) -m demo.language_model

$(VENV)/store-demo: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[store-demo]'
	@touch $@

demo-store: $(VENV)/store-demo
	$(PY) -m demo.growing --plot growing.png

test: $(VENV)/dev
	$(PY) -m pytest $(PARALLEL) $(TESTS)

test-core: $(VENV)/dev
	$(PY) -m pytest $(PARALLEL) $(PYTEST_OPTIONS) $(CORE_TESTS)

# The oldest versions come first on the path, before those of the environment. torch is not replaced, because version 2.4
# for Linux installs gigabytes of CUDA.
$(VENV)/oldest/made: $(VENV)/dev constraints-oldest.txt
	rm -rf $(@D)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt --target $(@D) numpy pandas pyarrow av
	@touch $@

test-oldest: $(VENV)/oldest/made
	PYTHONPATH=$(abspath $(VENV))/oldest $(PY) -m pytest $(PARALLEL) -W default $(CORE_TESTS) tests/decode/media/test_video.py

# For `.ci/run`, while mypy uses one processor: installs the oldest versions, and compiles the tests and all that they
# import, which otherwise each process of `make test` would do. Errors are left to `make test`.
prepare-tests: $(VENV)/oldest/made
	-$(PY) -m pytest --collect-only -qq $(TESTS) > /dev/null

$(VENV)/release: $(VENV)/made release/requirements.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --requirement release/requirements.txt
	@touch $@

wheels: $(VENV)/release
	$(VENV)/release/bin/python release/wheels.py

# Tests a wheel in dist/, by default this machine's, outside the checkout and without a C compiler on PATH. Tests that
# read the source in the checkout are left out.
WHEEL ?= dist/*manylinux*_$(shell uname -m).whl
WHEEL_TESTS ?= tests
TREE_TESTS := tests/test_structure.py tests/docs/test_site.py tests/test_docs.py::test_links_between_pages_lead_somewhere
IN_WHEEL = cd $(VENV)/wheel && PYTHONPATH=$(abspath $(VENV))/wheel/packages PATH=$(abspath $(VENV))/bin:$(abspath $(VENV))/wheel/tools
test-wheel: $(VENV)/dev
	rm -rf $(VENV)/wheel
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/wheel/packages $(WHEEL)
	cp -r $(filter-out parquet_loader dist site build,$(wildcard *)) $(VENV)/wheel
	mkdir $(VENV)/wheel/tools
	for tool in $$(echo "$$PATH" | tr : '\n' | sed 's,$$,/*,'); do case $${tool##*/} in \
		*cc|*cc-*|*c++*|*g++*|*clang*|c89*|c99*|*cpp*) ;; *) ln -sf "$$tool" $(VENV)/wheel/tools ;; esac; done
	$(IN_WHEEL) $(abspath $(PY)) -c "$$HAS_KERNELS"
	$(IN_WHEEL) $(abspath $(PY)) -m pytest $(PARALLEL) $(TREE_TESTS:%=--deselect=%) $(WHEEL_TESTS)

define HAS_KERNELS
from parquet_loader.common import LOADED_CODECS, native
assert "wheel/packages" in native.__file__ and LOADED_CODECS == 0b11111, (native.__file__, LOADED_CODECS)
endef
export HAS_KERNELS

# The pytest marker expression that selects the recipes; `.ci/run` leaves out slow ones.
MARKED ?= frameworks
test-frameworks: $(VENV)/frameworks
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m '$(MARKED)' -o faulthandler_timeout=1200 $(TESTS)

$(VENV)/spark: $(VENV)/dev
	$(INSTALL) 'torch-parquet-loader[dev,spark]'
	@touch $@

test-hdfs: $(VENV)/spark
	tests/support/hdfs_environment.sh $(VENV)/hadoop
	HADOOP_FOLDER=$(VENV)/hadoop $(PY) -m pytest -m '' -o faulthandler_timeout=1200 $(HDFS_TESTS)

test-all: $(VENV)/all
	$(PY) -m pytest -m '' $(PARALLEL) $(HDFS_TESTS:%=--ignore=%) -o timeout=600 -o faulthandler_timeout=1200 $(TESTS)

$(VENV)/docs: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[docs]'
	@touch $@

docs: $(VENV)/docs
	$(PY) release/docs_site.py

test-docs: $(VENV)/dev $(VENV)/docs
	$(PY) -m pytest -m slow -o faulthandler_timeout=1200 tests/docs

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

fuzz: $(VENV)/dev
	$(PY) -m tests.support.fuzz_pages --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

# To run one workload and system: make bench BENCH="run tabular --system ours". The suite builds an environment for each
# system.
bench: $(VENV)/made
	$(PY) -m benchmarks.suite $(BENCH)

clean:
	rm -rf $(VENV) .bench .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Verbs: demo test test-lowest check bench docs site clean. Each sets up what it needs; only Python 3.11+ and make must be there.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
# lerobot wants versions of other packages that ours do not go with: each of its formats has an environment of its own
INTEROP ?= .venv-interop
# the oldest release of each package that pyproject.toml admits; the environment of make test has the newest
LOWEST ?= .venv-lowest
# the site of the pages is made apart from the packages of the tests
SITE ?= .venv-site
# what a package of an extra does for stepwell is asked here; torch is left out: its older builds bring gigabytes of CUDA
SMOKE = tests/codecs tests/references tests/schema tests/readers/test_minari.py tests/readers/test_huggingface.py \
	tests/readers/test_robomimic.py tests/readers/test_zarr_replay.py tests/recorders/test_gymnasium.py tests/recorders/test_vector.py \
	tests/store/test_writer.py tests/windows/test_frame_stacks.py tests/loader/test_loader.py \
	tests/webdataset/test_reader.py tests/webdataset/test_writing.py \
	tests/tfds/test_reader.py tests/tfds/test_record_writing.py tests/tfds/test_images.py \
	tests/beton/test_stored_images.py tests/beton/test_writing.py tests/formats/test_in_place.py tests/cli/test_inspecting.py \
	tests/lerobot/test_camera_writing.py tests/lerobot/test_hub.py tests/lerobot/test_in_place.py \
	tests/lerobot/test_parquet_images.py tests/cli/test_warming.py \
	tests/bags tests/readers/test_hdf5_layouts.py tests/viewer
PY = $(VENV)/bin/python
# writers wait for the disk when they seal, and tests make thousands of stores: in memory, where there are 4 GiB of it
SHM := $(shell test -w /dev/shm && test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR==2{print $$4}')" -gt 4194304 && echo /dev/shm)
IN_MEMORY = $(if $(SHM),PYTEST_DEBUG_TEMPROOT=$(SHM))
# each process of the suite gets tests that follow each other, which share what a module makes, and takes of others at the end
SHARED = -n $(WORKERS) --dist worksteal
PIP = $(PY) -m pip install -qq --disable-pip-version-check
# The local version names the build without CUDA: elsewhere the plain version would fetch gigabytes, so there it is left out.
TORCH = torch==2.13.0+cpu

# images of containers set it; each process of the suite would then compile every module and rewrite every test once more
export PYTHONDONTWRITEBYTECODE =

.DELETE_ON_ERROR:
.PHONY: help demo test test-interop test-interop-ready test-interop-formats test-interop-formats-ready \
	test-interop-ffcv test-interop-ffcv-ready test-interop-ray test-interop-ray-ready \
	test-interop-reverb test-interop-reverb-ready test-lowest test-wheel check bench docs site site-ready clean

help:
	@echo "make demo    record 30 episodes of PushT, stream windows of them, draw a contact sheet (demo-output/)"
	@echo "make test    run every test and every example in the documentation"
	@echo "make test-interop   open what stepwell wrote in the real lerobot, and the other way round"
	@echo "make test-interop-formats   the same with the real TensorFlow Datasets, Minari and datasets"
	@echo "make test-interop-ffcv      the same with the real FFCV, where it can be built"
	@echo "make test-interop-ray       the same inside of Ray"
	@echo "make test-interop-reverb    Reverb's data sets as TensorFlow's"
	@echo "make test-lowest   the same in short, with the oldest release of each package that is allowed"
	@echo "make test-wheel    README's quick start from a wheel, by each Python from 3.11 on that is there"
	@echo "make check   ruff, ruff format, mypy"
	@echo "make bench   run the benchmarks beside their rivals (benchmarks/results/)"
	@echo "make docs    run the examples of README.md and docs/"
	@echo "make site    build the pages with search and reference (build/site/index.html); any warning is an error"
	@echo "make clean   remove what the verbs made, the virtual environment too"

demo: $(VENV)/.demo
	@$(VENV)/bin/stepwell demo

test: $(VENV)/.test
	$(IN_MEMORY) $(PY) -m pytest $(SHARED)

test-lowest: $(LOWEST)/.ready
	$(IN_MEMORY) NUMBA_CACHE_DIR=$(LOWEST)/numba $(LOWEST)/bin/python -m pytest $(SHARED) $(SMOKE)

test-wheel: $(VENV)/.pip
	$(PY) tests/wheel_quick_start.py

test-interop: test-interop-ready
	HF_HUB_OFFLINE=1 $(INTEROP)/v30/bin/python -m pytest -n 0 tests/interop tests/lerobot/test_hf_rows.py \
		tests/lerobot/test_meta_tables.py -k lerobot -m "not lerobot21"
	HF_HUB_OFFLINE=1 $(INTEROP)/v21/bin/python -m pytest -n 0 tests/interop -m lerobot21

test-interop-ready: $(INTEROP)/v30/.ready $(INTEROP)/v21/.ready

test-interop-formats: test-interop-formats-ready
	$(PY) -m pytest -n $(WORKERS) tests/interop -k "not lerobot and not ffcv"

test-interop-formats-ready: $(INTEROP)/formats/.ready

test-interop-ffcv: test-interop-ffcv-ready
	$(PY) -m pytest -n 0 tests/interop -k ffcv

test-interop-ffcv-ready: $(INTEROP)/ffcv/.ready

# what Ray starts listens on the loopback alone
test-interop-ray: test-interop-ray-ready
	RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 RAY_USAGE_STATS_ENABLED=0 $(INTEROP)/ray/bin/python -m pytest -n 0 \
		-W ignore::DeprecationWarning tests/ray "tests/test_readme.py::test_blocks_of_a_page_run_in_order_and_print_what_they_say[docs/ray.md]"

test-interop-ray-ready: $(INTEROP)/ray/.ready

test-interop-reverb: test-interop-reverb-ready
	$(INTEROP)/reverb/bin/python -m pytest -n 0 tests/reverb/test_tf_data.py

test-interop-reverb-ready: $(INTEROP)/reverb/.ready

check: $(VENV)/.lint
	@status=0; \
	$(VENV)/bin/ruff check . || status=1; \
	$(VENV)/bin/ruff format --check . || status=1; \
	$(VENV)/bin/mypy || status=1; \
	exit $$status

bench: $(VENV)/.bench
	mkdir -p benchmarks/results
	$(PY) benchmarks/run.py --list | xargs -n 1 $(PY) benchmarks/run.py | tee benchmarks/results/latest.jsonl

docs: $(VENV)/.test
	$(PY) -m pytest tests/test_readme.py

# pages link to each other as they lie in the repository, so the site is of a copy of them
site: site-ready
	rm -rf build/pages build/site
	mkdir -p build/pages
	cp -R docs design examples CHANGELOG.md CONTRIBUTING.md LICENSE build/pages
	rm -rf build/pages/docs/reference/sources.py build/pages/*/__pycache__
	cp README.md build/pages/index.md
	mkdir -p build/pages/benchmarks && cp benchmarks/README.md build/pages/benchmarks
	$(SITE)/bin/zensical build --clean --strict
	@echo "To read it, with search: python3 -m http.server -d build/site 8000"

site-ready: $(SITE)/.ready

clean:
	rm -rf $(VENV) $(INTEROP) $(LOWEST) $(SITE) build dist demo-output benchmarks/results .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@# dependency groups need pip 25.1
	@$(PIP) "pip>=25.1"
	@touch $@

# opencv-python, which PushT draws with, wants libGL; a machine without a desktop gets the build that does not
$(VENV)/.demo: pyproject.toml | $(VENV)/.pip
	@echo "Installing stepwell and what the demo needs (about a minute the first time) ..."
	@$(PIP) -e ".[demo]" || $(PIP) -e ".[demo-mujoco]"
	@$(PY) -c "import cv2" 2>/dev/null || $(PIP) --force-reinstall --no-deps opencv-python-headless || true
	@echo "Compiling kernels (under a minute, once) ..."
	@$(VENV)/bin/stepwell warm
	@touch $@

$(VENV)/.torch: | $(VENV)/.pip
	@echo "Installing $(TORCH) ..."
	@$(PIP) "$(TORCH)" 2>/dev/null || echo "$(TORCH) is not to be had here: tests that need torch are skipped."
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.torch $(VENV)/.demo
	@echo "Installing what the tests need ..."
	@$(PIP) --group test-frameworks
	@touch $@

# uv can resolve to the lowest versions, pip cannot
$(LOWEST)/.ready: pyproject.toml
	@echo "Making an environment of the lowest versions in $(LOWEST) ..."
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check "uv>=0.7"
	@$(LOWEST)/bin/uv pip install -q --python $(LOWEST)/bin/python --resolution lowest-direct \
		-e ".[image,zstd,lz4,video,gymnasium,cli,lerobot,formats,view]" --group test
	@touch $@

$(SITE)/.ready: pyproject.toml
	@echo "Making an environment for the site in $(SITE) ..."
	@$(PYTHON) -m venv --clear $(SITE)
	@$(SITE)/bin/python -m pip install -qq --disable-pip-version-check "pip>=25.1"
	@$(SITE)/bin/python -m pip install -qq --disable-pip-version-check --group site
	@touch $@

$(VENV)/.lint: pyproject.toml $(VENV)/.demo
	@echo "Installing ruff and mypy ..."
	@$(PIP) --group test --group lint
	@touch $@

# lerobot with its own dependencies as it pins them, but for torch, which is ours (what is built for torch with it), and ours on top
$(INTEROP)/v30/.ready: tests/interop/lerobot-v30.txt pyproject.toml
	@echo "Making an environment for lerobot in $(INTEROP)/v30 ..."
	@$(PYTHON) -m venv --clear $(INTEROP)/v30
	@$(INTEROP)/v30/bin/python -m pip install -qq --disable-pip-version-check "$(TORCH)"
	@$(INTEROP)/v30/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r $<
	@$(INTEROP)/v30/bin/python tests/interop/own_requirements.py lerobot torch torchvision torchcodec > $(INTEROP)/v30/own.txt
	@$(INTEROP)/v30/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -r $(INTEROP)/v30/own.txt \
		-e ".[lerobot]" pytest pytest-timeout pytest-xdist hypothesis
	@$(call check_lerobot,v30)
	@touch $@

# lerobot 0.3 and what it was made for, in front of an environment that sees ours; torch is ours
$(INTEROP)/v21/.ready: tests/interop/lerobot-v21.txt tests/interop/lerobot-v21-alone.txt $(VENV)/.test
	@echo "Making an environment for lerobot 0.3 in $(INTEROP)/v21 ..."
	@$(PYTHON) -m venv --clear $(INTEROP)/v21
	@site=$$($(INTEROP)/v21/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
	$(PY) -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" > $$site/zz_ours.pth
	@$(INTEROP)/v21/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -r $<
	@$(INTEROP)/v21/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-deps -r tests/interop/lerobot-v21-alone.txt
	@$(call check_lerobot,v21)
	@touch $@

# torchvision is built for torch with CUDA (sitecustomize.py); torchcodec decodes with the FFmpeg of the system, which may not be there
define check_lerobot
site=$$($(INTEROP)/$(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
cp tests/interop/sitecustomize.py $$site/ && \
$(INTEROP)/$(1)/bin/python -c "import lerobot.datasets.lerobot_dataset" && \
{ $(INTEROP)/$(1)/bin/python -c "import importlib.util as u; u.find_spec('torchcodec') and __import__('torchcodec.decoders')" 2>/dev/null || \
{ echo "lerobot cannot decode video here: FFmpeg's libraries are missing (Debian: ffmpeg)."; exit 1; }; }
endef

# environments that see ours, with what they need, and what that pins, in front of it
$(INTEROP)/ray/.ready $(INTEROP)/reverb/.ready: $(INTEROP)/%/.ready: tests/interop/%.txt $(VENV)/.test
	@echo "Making an environment in $(INTEROP)/$* ..."
	@$(PYTHON) -m venv --clear $(INTEROP)/$*
	@site=$$($(INTEROP)/$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
	$(PY) -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" > $$site/zz_ours.pth
	@$(INTEROP)/$*/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -r $<
	@$(INTEROP)/$*/bin/python -c "import $(IMPORTS_$*)"
	@touch $@

IMPORTS_ray = ray.data, ray.train, ray.rllib
IMPORTS_reverb = tensorflow, stepwell.reverb

# TensorFlow and the others of the field are asked from outside: nothing of ours is in there
$(INTEROP)/formats/.ready: tests/interop/formats.txt $(VENV)/.test
	@echo "Making an environment for TensorFlow Datasets and others in $(INTEROP)/formats ..."
	@$(PYTHON) -m venv --clear $(INTEROP)/formats
	@$(INTEROP)/formats/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@$(INTEROP)/formats/bin/python -c "import tensorflow_datasets, minari, datasets"
	@touch $@

# built from source: a compiler, pkg-config, OpenCV and libturbojpeg must be there (Debian: g++ pkg-config libopencv-dev libturbojpeg0-dev)
$(INTEROP)/ffcv/.ready: tests/interop/ffcv.txt $(VENV)/.test
	@echo "Making an environment for FFCV in $(INTEROP)/ffcv ..."
	@pkg-config --exists opencv4 libturbojpeg || { echo "FFCV cannot be built here: OpenCV's and libturbojpeg's headers are missing."; exit 1; }
	@$(PYTHON) -m venv --clear $(INTEROP)/ffcv
	@$(INTEROP)/ffcv/bin/python -m pip install -qq --disable-pip-version-check "$(TORCH)"
	@$(INTEROP)/ffcv/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@$(INTEROP)/ffcv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation "ffcv==1.0.2"
	@$(INTEROP)/ffcv/bin/python -c "import ffcv"
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.test
	@for rival in stable-baselines3 cpprb torchrl; do \
		$(PY) -c "import torch" 2>/dev/null && $(PIP) "$$rival" || echo "$$rival is left out: not to be had here, or torch is missing."; \
	done
	@touch $@

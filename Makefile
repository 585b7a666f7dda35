PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORKERS := --dist loadscope --numprocesses

.PHONY: run check test lint quick suite methods-test docs same-bits deployment-test fault-test cluster-test docker-test clean

# The environment, 6.6 GB with PyTorch's CUDA build, is made when it is missing or pyproject.toml or constraints.txt is newer.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: .venv/.installed
	$(BIN)/pfedlora run conf/quickstart.yaml --overwrite

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The inner loop: lint, types, and every test that trains no federation and starts no process. Under a minute.
check: .venv/.installed
	$(MAKE) --jobs 2 lint quick

# The suite, beside lint and types. Three tests at a time on two cores: a federation waits a good part of its time. Seven minutes.
test: .venv/.installed
	$(MAKE) --jobs 2 lint suite

quick: .venv/.installed
	$(BIN)/python -m pytest $(WORKERS) 2 -m 'not slow and not methods and not deployment and not faults and not cluster'

suite: .venv/.installed
	$(BIN)/python -m pytest $(WORKERS) 3

# Every method in every setting it takes.
methods-test: .venv/.installed
	$(BIN)/python -m pytest $(WORKERS) 2 -m methods

# The files that are made from the code: docs/keys.md, docs/methods.md, the keys and the version in pyproject.toml and CITATION.cff, and the picture.
docs: .venv/.installed
	$(BIN)/python scripts/declare.py
	$(BIN)/python -m scripts.methods
	$(BIN)/python scripts/idea.py

# Whether this tree computes what commit BASE computed, to the last bit: a table of hashes.
same-bits: .venv/.installed
	$(BIN)/python scripts/same_bits.py $(BASE)

# SuperLink and SuperNodes as real processes: TLS with authentication, gRPC, process isolation, nodes with data of their own.
deployment-test: .venv/.installed
	$(BIN)/python -m pytest -m deployment tests/deployment

# Every process killed at every point of a round; prints a table.
fault-test: .venv/.installed
	$(BIN)/python -m pytest -m faults tests/deployment

# Two Ray nodes on this machine: the bits of one machine, a node that dies, and nothing of ours left on the cluster.
cluster-test: .venv/.installed
	$(BIN)/python -m pytest -m cluster tests/cluster

# The Docker demo: a node killed midway, a broken app, and TLS.
docker-test:
	bash docker/test.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

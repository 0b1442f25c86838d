# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# make demo   brings up the embedded cluster, runs site.yml on it, ends with a report
# make test   everything that is checked before a change lands
SHELL := /bin/sh
BIN := .venv/bin
PYTHON_SOURCES := plugins lab tests tools

.PHONY: help setup setup-lora demo test test-lab lint typecheck sanity docs unit molecule build matrix test-install test-awx clean

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: ## Install what the rest needs (Debian packages, .venv)
	@tools/setup

setup-lora: setup ## PyTorch, transformers and peft too, for the tests that train
	@tools/setup lora

demo: setup ## Run site.yml on an embedded cluster of two virtual machines, and report
	@tools/demo

# What uses one processor goes side by side, the lab has them all, and pytest shares its files among two.
test: setup-lora ## Check everything
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint typecheck docs sanity build
	@$(MAKE) --no-print-directory molecule
	@$(MAKE) --no-print-directory unit

lint: setup ## ansible-lint (production), yamllint, ruff, shellcheck
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/yamllint --strict .
	shellcheck tools/setup tools/demo tools/sanity tools/molecule tools/build tools/try_install tools/try_awx .ci/run
	ANSIBLE_HOME=$(CURDIR)/.ansible PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --strict

typecheck: setup ## mypy --strict
	$(BIN)/mypy plugins/module_utils plugins/plugin_utils lab

docs: setup ## antsibull-docs lint, and generated pages up to date
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=all .
	$(BIN)/antsibull-changelog lint

sanity: setup ## ansible-test sanity
	@tools/sanity

build: setup ## Build the archive, install it elsewhere, syntax-check its playbooks there
	@tools/build

molecule: setup ## The scenarios that need no long lab run
	@tools/molecule default

unit: setup-lora ## pytest
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

test-lab: setup-lora ## What takes longer: every scenario and every test on virtual machines
	@tools/molecule
	GPUFABRIC_LAB=1 $(BIN)/python -m pytest -m "lab or slow"

matrix: setup ## Every supported pair of ansible-core and Python; takes long, and needs the Pythons
	@tools/matrix

test-install: setup ## Run the built archive in an environment that holds its requirements alone
	@tools/try_install

test-awx: setup ## playbooks/awx.yml with awx.awx, against a stand-in for AWX
	@tools/try_awx

clean: ## Remove what was generated, but for the lab's image cache
	rm -rf .venv .ansible .cache collections/ansible_collections gpufabric-cluster-*.tar.gz

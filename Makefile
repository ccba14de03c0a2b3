# The commands of the course; README.md shows the same in plain commands.

# The first Python that is new enough; `make PYTHON=python3.12 book` takes another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
# Options for pip, such as --extra-index-url
PIP_ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/installed
BOOK := _build/html/index.html
PYTEST := $(BIN)/python -m pytest
# Two at a time, each with one thread, so that numbers repeat.
PARALLEL := -n 2 --dist loadfile
# test_name.py of every module name.py: the tests of the library, and no others
LIBRARY_TESTS := $(sort $(wildcard $(patsubst attention_lib/%.py,tests/test_%.py,$(wildcard attention_lib/*.py))))
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
# A progress bar is for a person.
test: export TQDM_DISABLE = 1

.PHONY: help book kernels test mutants faults browser colab download pdf lint lab clean

help:
	@echo 'make book       build the book; prints where it is'
	@echo 'make test       run the tests of the library, the notebooks and the exercises'
	@echo 'make kernels    install Triton (Linux, 1 GB), so that make test tests the GPU kernels too'
	@echo 'make mutants    plant small faults in the library and count those its tests catch (hours)'
	@echo 'make faults     plant faults in the library and record which chapters notice (an hour)'
	@echo 'make lab        open the chapters in JupyterLab'
	@echo 'make browser    build the book and read it with a browser (needs Chromium)'
	@echo 'make colab      run every chapter in a copy of the environment of Colab'
	@echo 'make download   pack the book, the chapters and the library into one zip'
	@echo 'make pdf        write the book as one PDF (needs XeLaTeX, xindy, GNU FreeFont, DejaVu, Noto Sans CJK)'
	@echo 'make lint       check the format and the style of all code, and the dependencies'
	@echo 'make clean      remove the environment and everything that was built'

# One environment for all; made again only when what it must hold has changed.
$(INSTALLED): requirements.txt pyproject.toml
	@test -n '$(PYTHON)' || { echo 'The course needs Python 3.11 or newer.' \
		'Install it, or say where it is: make PYTHON=/path/to/python book'; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_ARGS) -r requirements.txt
	@touch $@

kernels: $(INSTALLED)
	$(BIN)/python -m pip install $(PIP_ARGS) -r requirements-kernels.txt

# --all: a page that was built with a warning before must not pass unread.
book: $(INSTALLED)
	$(BIN)/jupyter-book build . --all -W -n --keep-going
	@echo 'The front page: $(CURDIR)/$(BOOK)'

# 1. everything but the site, the examples in docstrings and on the front page included
# 2. the library's tests against planted faults, dealt out one by one, since they take long
# 3. the library once more, with the shapes in its signatures enforced on every call
# 4. every chapter run again and compared with its stored outputs; the page on checking reads
#    from the report how long each took
test: $(INSTALLED)
	$(PYTEST) $(PARALLEL) -m 'not site and not colab' --doctest-modules --doctest-glob=index.md \
		--ignore=tests/test_planted_faults.py --ignore=tests/browser \
		tests attention_lib chapters/index.md
	$(PYTEST) -n 2 tests/test_planted_faults.py
	$(PYTEST) $(PARALLEL) --jaxtyping-packages=attention_lib,beartype.beartype \
		-m 'not refusal and not site' $(LIBRARY_TESTS)
	$(PYTEST) $(PARALLEL) --nbval --nbval-sanitize-with tests/sanitize.cfg \
		--junitxml=_build/chapters.xml chapters

# MODULES="lookup scaling" tries those alone
mutants: $(INSTALLED)
	$(BIN)/python -m pip install $(PIP_ARGS) -r requirements-mutants.txt
	$(BIN)/python tools/mutants.py $(MODULES)

# CHAPTERS="06 07" tries those alone
faults: $(INSTALLED)
	$(BIN)/python tools/chapter_faults.py $(CHAPTERS)

browser: book
	$(PYTEST) -m site tests

colab: $(INSTALLED)
	$(PYTEST) tests/test_colab.py

download: book
	$(BIN)/python tools/download.py

# A font without a character, or a box that is too full, must not stop it to ask.
pdf: export LATEXOPTS = -interaction=nonstopmode
pdf: $(INSTALLED)
	$(BIN)/jupyter-book build . --builder pdflatex --all -W -n --keep-going
	@echo 'The book: $(CURDIR)/_build/latex/attention-course.pdf'

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deptry .

lab: $(INSTALLED)
	$(BIN)/jupyter lab chapters

clean:
	rm -rf .venv _build

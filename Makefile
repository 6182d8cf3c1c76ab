# The front door: each verb does all set-up itself.  See CONTRIBUTING.md.
.PHONY: all demo test unit system crash bench lint install clean setup setup-tests
.DEFAULT_GOAL := all
PREFIX ?= /usr/local
MESON = /usr/bin/meson

all: setup build/build.ninja
	@ninja -C build --quiet

setup:
	@tools/setup

setup-tests:
	@tools/setup --tests

build/build.ninja:
	@$(MESON) setup build --buildtype=release -Dtests=false >/dev/null

# Failpoints compiled in, with unit tests: what the crash tests run.
build-test/build.ninja:
	@$(MESON) setup build-test -Dfailpoints=true --werror >/dev/null

demo: all
	@demo/run $(DEMO)

test: setup-tests all build-test/build.ninja
	@ninja -C build-test --quiet
	@tests/run $(TESTS)

unit system crash: setup-tests all build-test/build.ninja
	@ninja -C build-test --quiet
	@tests/run $@

bench: setup-tests all
	@tests/bench/run $(BENCH)

lint: setup-tests
	@tools/lint

install: all
	@$(MESON) configure build -Dprefix=$(PREFIX)
	@$(MESON) install -C build

clean:
	rm -rf build build-*

# Everything that is done with this repository. Each target ends with one line of figures.

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR := $(TARGET)
PROGRAMS := $(TARGET)/release/sandboxd $(TARGET)/release/sandboxd-launch $(TARGET)/release/sandbox-init $(TARGET)/release/sandboxctl

.PHONY: help build demo test browser vm vm-package bench chaos scale fuzz lint deny format
.DEFAULT_GOAL := help

help:
	@echo "make build    the four programs, in target/release"
	@echo "make demo     a session from nothing: a spreadsheet grouped and drawn, by code in a sandbox (root)"
	@echo "make test     every test (root)"
	@echo "make browser  the dashboard, in a browser, with real sessions (root)"
	@echo "make vm       the tests that need systemd and every cgroup controller, in a machine of their own (root)"
	@echo "make vm-package  the package on a real systemd: install, kill, upgrade, reboot, lose power, purge (root)"
	@echo "make newcomer what the README says of installing, typed on a fresh Debian (root, up to an hour)"
	@echo "make bench    how long things take, each beside what cannot be avoided (root)"
	@echo "make chaos    kill service and launcher 200 times under load, then compare (root)"
	@echo "make idle     what both services cost while no session is open, over a minute, and how soon they serve (root)"
	@echo "make scale    1,000 open sessions of which 20 are resident (root)"
	@echo "make probes   what a hostile tenant, image, registry or client tries, each beside a control (root)"
	@echo "make workbench  the workbench built and worked with: documents, tables, charts, code (root)"
	@echo "make workbench-ordered  the same with the image that was ordered, which a registry on loopback stands in for (root)"
	@echo "make fuzz     every parser of what strangers write, for FUZZ_SECONDS (20) each (root)"
	@echo "make deb, make rpm   the packages, in target/packages"
	@echo "make package  both packages: what is in them, and what they do to a host's files (root)"
	@echo "make lint     format, clippy, dependencies"

# One invocation for the three that run on the host; sandbox-init is static and has a profile of its own.
build:
	@tests/prepare build
	cargo build --release --locked --package sandboxd --package sandboxd-launch --package sandboxctl
	@src/init/build.sh
	@stat --format '%s %n' $(PROGRAMS) | awk '{ bytes += $$1 } END { printf "build: %d programs, %.1f MiB\n", NR, bytes / 1048576 }'

demo: build
	@tests/prepare demo
	@tests/demo/run

test: build
	@tests/prepare test
	@tests/run

browser: build
	@tests/prepare browser
	@tests/browser/run

vm: build
	@tests/prepare vm
	@tests/vm/suite

bench: build
	@tests/prepare test
	cargo run --quiet --release --locked --package bench

chaos: build
	@tests/prepare test
	cargo run --quiet --release --locked --package it --bin chaos

.PHONY: idle
idle: build
	@tests/prepare test
	cargo run --quiet --release --locked --package it --bin idle

scale: build
	@tests/prepare test
	cargo run --quiet --release --locked --package it --bin scale

.PHONY: probes
probes: build
	@tests/prepare test
	@tests/probes/build
	cargo run --quiet --release --locked --package probes

.PHONY: workbench workbench-ordered
workbench: build
	@tests/prepare demo
	@tests/workbench/run

workbench-ordered: build
	@tests/prepare test
	@tests/workbench/run --ordered

fuzz:
	@tests/prepare fuzz
	@fuzz/run

.PHONY: deb rpm package
deb rpm: build
	@tests/prepare $@
	@packaging/$@/build | xargs stat --format '%s %n' | awk '{ printf "$@: %.1f MiB, %s\n", $$1 / 1048576, $$2 }'

vm-package: build
	@tests/prepare vm
	@tests/prepare deb
	@tests/prepare rpm
	@tests/vm/package

.PHONY: newcomer
newcomer: build
	@VM_TIER=qemu tests/prepare vm
	@tests/prepare deb
	@packaging/deb/build >/dev/null
	@tests/vm/newcomer

package: build
	@tests/prepare package
	@tests/package/run

lint:
	@tests/prepare build
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- --deny warnings
	@$(MAKE) --no-print-directory deny
	@echo "lint: 3 passed, 0 failed"

# What may be in the tree of dependencies; see deny.toml.
deny:
	@tests/prepare deny
	PATH="$(TARGET)/tools/bin:$$PATH" cargo deny --locked --all-features check --hide-inclusion-graph bans licenses sources

format:
	cargo fmt --all
	@echo "format: done"

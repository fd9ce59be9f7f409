# make demo    from nothing to three nginx containers that answer (IMAGE=nginx:1.14.2 pulls instead of building)
# make down    undoes the demo
# make test    everything, end-to-end tests with real containers included; as root
# make simulation   2,000 random histories of each controller (SEEDS=100 runs fewer), without network or containers
# make vm      virtual machines with systemd: provisioning, a reboot, a power cut, uninstallation, with cgroup v2 and v1; as root
# make check   format, lints, documentation, licences, unused dependencies
# make dist    archives of programs and units for x86-64 and ARM64 machines, with their checksums, in target/dist
# make bench   measures a release build on this machine; as root

SHELL := /bin/bash
SKIFF_CACHE ?= /var/cache/skiff
STATE ?= /var/lib/skiff
IMAGE ?=
SEEDS ?= 2000
MACHINES ?= x86_64 aarch64
target := $(or $(CARGO_TARGET_DIR),target)
export SKIFF_CACHE
export PATH := $(PATH):$(SKIFF_CACHE)/tools/bin

.PHONY: demo down test simulation vm check bench release dist

demo: release
	tests/demo --programs "$(target)/release" --state-dir "$(STATE)" $(if $(IMAGE),--image "$(IMAGE)")

down:
	"$(target)/release/skiff" down --purge --state-dir "$(STATE)"

release:
	.ci/prerequisites
	cargo build --locked --release --package ctl --package controlplane --package agent

dist:
	.ci/prerequisites --dist
	for machine in $(MACHINES); do systemd/dist "$$machine" "$(target)" || exit; done

test:
	.ci/prerequisites --tools
	cargo build --locked --workspace --bins
	@# Some tests run in networks that reach no package.
	tests/images/build busybox
	tests/images/build nginx
	@# What a failed test has seen last is not to drown in frames.
	RUST_BACKTRACE=0 cargo nextest run --locked --workspace -E 'not binary(simulation)'
	@# They load a processor each and need no machine of their own: side by side, after the tests that wait for real things.
	RUST_BACKTRACE=0 cargo nextest run --locked --workspace -E 'binary(simulation)'

simulation:
	SEEDS=$(SEEDS) cargo test --locked --profile simulation --package tests --test simulation over_a_lossy_network

vm: release
	.ci/prerequisites --vm
	tests/vm --programs "$(target)/release"

check:
	.ci/prerequisites --tools
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
	cargo fetch --locked
	cargo deny --offline check bans licenses sources
	cargo shear

bench: release
	cargo build --locked --release --package tests --bin bench
	"$(target)/release/bench" --image "$$(tests/images/build nginx)"

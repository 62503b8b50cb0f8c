# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Nothing here needs the network but `setup` and `vmlinux`.

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SUFFIXES:

# --- What can be set on the command line: these, and PYTHON ------------------------------------------------------------

ARCHES ?= x86_64 arm64
# A header to compile against instead of vmlinux/<arch>/vmlinux.h: VMLINUX_H for all ARCHES, VMLINUX_H_<arch> for one.
VMLINUX_H ?=
CLANG ?= $(call once,CLANG,$(call newest,clang))
LLVM_STRIP ?= $(call once,LLVM_STRIP,$(call beside_clang,llvm-strip))
LLVM_READELF ?= $(call once,LLVM_READELF,$(call beside_clang,llvm-readelf))
LIBBPF_CFLAGS ?= $(call once,LIBBPF_CFLAGS,$(shell pkg-config --cflags libbpf 2>/dev/null))
WERROR ?= -Werror
BPF_SRC ?= bpf_src
BUILD ?= build
OBJECTS ?= wptrace/objects
DESTDIR ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
MANDIR ?= $(PREFIX)/share/man
# What the installed command runs on, and the machine: with DESTDIR another one than this may be meant.
INTERPRETER ?= /usr/bin/python3
MACHINE ?= $(patsubst aarch64,arm64,$(shell uname -m))

# --- How it is found --------------------------------------------------------------------------------------------------

# Ask the shell once and only if the answer is used, so that `make help` needs no compiler.
once = $(eval $1 := $2)$($1)
# The program of that name, else the one with the highest version in its name.
newest = $(shell command -v $1 || ls $(patsubst %,%/$1-[0-9]*,$(subst :, ,$(PATH))) 2>/dev/null \
	| sed -n 's|.*/$1-\([0-9]*\)$$|\1 &|p' | sort -n | tail -n 1 | cut -d ' ' -f 2)
# Distributions keep the unversioned names beside their clang and not always on PATH.
beside_clang = $(shell path=$$($(CLANG) -print-prog-name=$1 2>/dev/null); \
	command -v "$$path" || echo "$(call newest,$1)")
# Programs include only vmlinux.h and libbpf's headers; /usr/include/<triplet> is for what those include in turn.
system_includes = $(call once,system_includes,$(shell $(CLANG) -v -E - </dev/null 2>&1 \
	| sed -n '/<...> search starts here:/,/End of search list./{ s| \(/.*\)|-idirafter \1|p }'))

# A Python that is named brings the tools of lint and test along; else they come from .venv, made when first needed.
ifdef PYTHON
tool := $(PYTHON) -m
CLANG_FORMAT ?= clang-format
else
PYTHON = $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
CLANG_FORMAT ?= .venv/bin/clang-format
tool := .venv/bin/python -m
venv := .venv/bin/pytest
endif

DEFINE_x86_64 := -D__TARGET_ARCH_x86
DEFINE_arm64 := -D__TARGET_ARCH_arm64

# Unknown warnings are switched off first: the rest is what one of clang 14 to 22 says and others do not, of libbpf's
# macros as well.
WARNINGS := -Wall -Wextra $(WERROR) -Wno-unknown-warning-option -Wno-unused-parameter \
	-Wno-address-of-packed-member -Wno-compare-distinct-pointer-types -Wno-missing-declarations \
	-Wno-default-const-init-var-unsafe
# Sources are named relative to the tree: the line info of .BTF.ext must not depend on where it lies.
REPRODUCIBLE := -fdebug-compilation-dir=.
BPF_CFLAGS = -g -O2 -target bpf -mcpu=v3 -std=gnu11 -fno-stack-protector $(WARNINGS) $(REPRODUCIBLE) $(LIBBPF_CFLAGS)

ifeq ($(V),1)
quiet = @:
Q :=
else
quiet = @printf '  %-8s %s\n' $1 $2
Q := @
MAKEFLAGS += --no-print-directory
endif

# In folders by subsystem, and an object has the name of its source without the folder.
sources := $(sort $(wildcard $(BPF_SRC)/*.bpf.c $(BPF_SRC)/*/*.bpf.c))
names := $(patsubst %.bpf.c,%,$(notdir $(sources)))
ifneq ($(words $(names)),$(words $(sort $(names))))
$(error Two sources of $(BPF_SRC) have one name: $(sources))
endif
objects := $(foreach arch,$(ARCHES),$(patsubst %,$(OBJECTS)/$(arch)/%.bpf.o,$(names)))
# Named, so that one that a failed compilation took away is missed: make believes in what it made of an unnamed one before.
compiled := $(foreach arch,$(ARCHES),$(patsubst %,$(BUILD)/$(arch)/%.bpf.o,$(names)))
binding := wptrace/bpf/_libbpf.py
c_files := $(sort $(wildcard bpf_src/*.[ch] bpf_src/*/*.[ch] bpf_src/*/*/*.[ch] tests/objects/*.[ch] \
	tests/kernel/bpf/*.[ch] tests/modules/*.[ch]))
python_files := wptrace tests vmlinux bench packaging setup.py

# --- Targets ----------------------------------------------------------------------------------------------------------

.PHONY: test-all soak all help objects binding clean vmlinux format lint setup test-unit test-objects test bench demo pictures fields completions dist deb rpm release-check test-packages install uninstall FORCE

all: objects binding completions ## the BPF objects, the binding to libbpf and completions (default)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
	@echo
	@echo '  V=1 shows the commands; ARCHES="x86_64 arm64" CLANG= VMLINUX_H= LIBBPF_CFLAGS= PYTHON= choose the parts.'
	@echo '  PREFIX=/usr/local DESTDIR= LIBDIR= MANDIR= INTERPRETER=/usr/bin/python3 MACHINE= say where install puts them, for what.'

objects: $(compiled) $(objects) ## compile the sources of bpf_src for all ARCHES into wptrace/objects

binding: $(binding) ## the declarations of libbpf that the Python package loads

$(binding): wptrace/bpf/build_libbpf.py
	$(call quiet,CFFI,$@)
	$(Q)$(PYTHON) $< && touch $@

completions: $(BUILD)/completions/made ## what completes the words of the command in bash, zsh and fish, by shtab

$(BUILD)/completions/made: packaging/completions.py $(filter-out $(binding),$(shell find wptrace -name '*.py'))
	$(call quiet,SHTAB,$(@D))
	$(Q)$(PYTHON) packaging/completions.py $(@D)

clean: ## remove what make built (not .venv)
	rm -rf $(BUILD) $(OBJECTS) $(binding)

vmlinux: ## make vmlinux/*/vmlinux.h anew from Debian's kernels (downloads them)
	$(Q)$(PYTHON) vmlinux/update.py

format: | $(venv) ## format Python and C
	$(Q)$(tool) ruff check --fix --quiet --exit-zero $(python_files)
	$(Q)$(tool) ruff format --quiet $(python_files)
	$(Q)$(if $(c_files),$(CLANG_FORMAT) -i $(c_files))

lint: | $(venv) ## check style and types
	$(call quiet,RUFF,"$(python_files)")
	$(Q)$(tool) ruff check --quiet $(python_files)
	$(Q)$(tool) ruff format --check --quiet $(python_files)
	$(call quiet,MYPY,strict)
	$(Q)$(tool) mypy --no-error-summary
	$(Q)$(tool) mypy --no-error-summary vmlinux/generate.py
	$(Q)$(tool) mypy --no-error-summary $(wildcard packaging/*.py)
	$(call quiet,FORMAT,$(BPF_SRC))
	$(Q)$(if $(c_files),$(CLANG_FORMAT) --dry-run -Werror $(c_files))

setup: ## install what a bare Debian machine lacks and make .venv
	$(Q)tests/setup.sh

test-unit: all | $(venv) ## tests that need no root and no kernel
	$(Q)$(tool) pytest -q -n 2 --dist worksteal tests/unit

test-objects: ## compile what the tests of the binding load
	$(Q)$(MAKE) objects BPF_SRC=tests/kernel/bpf OBJECTS=$(BUILD)/test-objects BUILD=$(BUILD)/test

# What these need is there only after the set-up, so it is asked for in a make of its own.
test: setup ## set up and run all tests, on this kernel and in guests
	$(Q)$(MAKE) all test-objects
	$(Q)$(tool) tests.run

test-all: setup ## the same, every test on every kernel, and packages in clean roots
	$(Q)tests/setup.sh packages
	$(Q)tests/setup.sh npm
	$(Q)$(MAKE) all test-objects
	$(Q)$(tool) tests.run --all

soak: setup ## weeks of wptrace agent and wptrace io, in an hour; needs root
	$(Q)$(MAKE) all
	$(Q)WPTRACE_TESTS_ALL=1 WPTRACE_TESTS_SOAK=1 $(tool) pytest -q -s -p no:cacheprovider tests/kernel/test_agent_soak.py

test-packages: setup ## build each package, and use it in clean roots, by debootstrap
	$(Q)tests/setup.sh packages
	$(Q)$(MAKE) all
	$(Q)$(tool) pytest -q -p no:cacheprovider tests/packages

bench: setup ## set up and measure what tracing costs (docs/overhead.md)
	$(Q)$(MAKE) all
	$(Q)$(tool) bench all

# By the system's Python: nothing is installed but what the distribution has.
demo: ## install what this needs, and show what wptrace does
	$(Q)tests/setup.sh demo
	$(Q)$(MAKE) objects binding PYTHON=/usr/bin/python3 ARCHES=$(MACHINE)
	$(Q)PYTHON=/usr/bin/python3 tests/demo.sh

pictures: all | $(venv) ## draw docs/pictures anew: two from the code, others by traces of a loop device (root, fio, chromium)
	$(call quiet,DRAW,docs/pictures)
	$(Q)$(PYTHON) packaging/pictures.py

fields: | $(venv) ## write the tables of fields in docs/json.md, size.md and stacks.md, from docs/schema.json
	$(call quiet,WRITE,docs)
	$(Q)$(PYTHON) packaging/fields.py

installing = $(PYTHON) packaging/install.py --destdir '$(DESTDIR)' --prefix '$(PREFIX)' --libdir '$(LIBDIR)' \
	--mandir '$(MANDIR)'

install: all ## install into $(DESTDIR)$(PREFIX), the package into $(DESTDIR)$(LIBDIR)/wptrace
	$(call quiet,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)$(installing) --machine '$(MACHINE)' --interpreter '$(INTERPRETER)' --completions $(BUILD)/completions install

dist: all ## sdist, wheel, tarball, SBOM and SHA256SUMS into dist/, the same bytes each time
	$(call quiet,DIST,dist)
	$(Q)$(PYTHON) packaging/dist.py

deb: ## a package for this Debian into dist/, by dpkg-buildpackage
	$(Q)PYTHON=$(PYTHON) packaging/deb.sh dist

rpm: ## a package for this system into dist/, by rpmbuild
	$(Q)PYTHON=$(PYTHON) packaging/rpm.sh dist

release-check: ## what is missing before this version can be published
	$(Q)$(PYTHON) packaging/release.py

uninstall: ## remove what install put there
	$(call quiet,REMOVE,$(DESTDIR)$(PREFIX))
	$(Q)$(installing) uninstall

.venv/bin/pytest:
	$(Q)tests/setup.sh venv

# --- BPF objects ------------------------------------------------------------------------------------------------------

# Checked each time, written when the compiler or its flags changed: then all objects are built anew.
toolchain = $(shell $(CLANG) --version 2>/dev/null | head -n 1) $(BPF_CFLAGS) $(system_includes) \
	$(header_dir_x86_64) $(header_dir_arm64) $(LLVM_STRIP)

$(BUILD)/tools: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)command -v '$(firstword $(CLANG))' >/dev/null || { \
		echo 'clang is missing: install clang (Debian, Ubuntu, Fedora), 14 or newer, or set CLANG=' >&2; exit 1; }
	$(Q)command -v '$(LLVM_STRIP)' >/dev/null && command -v '$(LLVM_READELF)' >/dev/null || { \
		echo 'llvm-strip is missing: install llvm (Debian, Ubuntu, Fedora), or set LLVM_STRIP= and LLVM_READELF=' >&2; \
		exit 1; }
	$(Q)test "$$(echo __clang_major__ | $(CLANG) -E -P -)" -ge 14 || { \
		echo '$(CLANG) is too old: version 14 or newer is needed, set CLANG=' >&2; exit 1; }
	$(Q)echo '#include <bpf/bpf_tracing.h>' | $(CLANG) -target bpf $(LIBBPF_CFLAGS) -E -o /dev/null - 2>/dev/null || { \
		echo 'bpf/bpf_tracing.h is missing: install libbpf-dev (Debian, Ubuntu) or libbpf-devel (Fedora),' \
			'or set LIBBPF_CFLAGS=-I...' >&2; exit 1; }
	$(Q)echo '$(toolchain)' | cmp -s - $@ || echo '$(toolchain)' >$@

# A source may have moved since a depfile named it: what it gave is built anew.
$(BPF_SRC)/%.bpf.c: ;

define rules_of_arch
ifneq ($(or $(VMLINUX_H_$1),$(VMLINUX_H)),)
# The header may have any name where it comes from; programs include "vmlinux.h".
header_dir_$1 := $(BUILD)/$1/include
$(BUILD)/$1/include/vmlinux.h: $(or $(VMLINUX_H_$1),$(VMLINUX_H)) FORCE
	$$(Q)mkdir -p $$(@D)
	$$(Q)cmp -s $$< $$@ || cp $$< $$@
else
header_dir_$1 := vmlinux/$1
endif

# libbpf reads BTF and needs no DWARF, which is most of the object.
$$(OBJECTS)/$1/%.bpf.o: $$(BUILD)/$1/%.bpf.o
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(LLVM_STRIP) --strip-debug -o $$@ $$<
	$$(Q)$$(LLVM_READELF) --sections --wide $$@ | awk '{ sub(/^.*\]/, "") } \
		$$$$1 ~ /^\.BTF(\.ext)?$$$$/ && $$$$5 !~ /^0+$$$$/ { found++ } END { exit found != 2 }' || { \
		echo '$$@: .BTF or .BTF.ext is missing or empty after $$(LLVM_STRIP)' >&2; exit 1; }
endef
$(foreach arch,x86_64 arm64,$(eval $(call rules_of_arch,$(arch))))

define rule_of_source
$$(BUILD)/$1/$(notdir $(2:.c=.o)): $2 $$(header_dir_$1)/vmlinux.h $$(BUILD)/tools
	$$(call quiet,CLANG,$1/$$(@F))
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CLANG) $$(BPF_CFLAGS) $$(DEFINE_$1) -I$$(header_dir_$1) -I$$(BPF_SRC) -Ibpf_src $$(system_includes) \
		-MMD -MP -c $$< -o $$@
endef
$(foreach arch,x86_64 arm64,$(foreach source,$(sources),$(eval $(call rule_of_source,$(arch),$(source)))))

-include $(wildcard $(foreach arch,$(ARCHES),$(BUILD)/$(arch)/*.d))

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make a bare Debian machine ready to build and test wptrace; quick where nothing is missing.
#
#   tests/setup.sh          the packages, then .venv
#   tests/setup.sh demo     what `make demo` takes
#   tests/setup.sh packages what builds packages, and clean roots to try them in
#   tests/setup.sh npm      what some tests take of npm
#   tests/setup.sh venv     only .venv
set -eu
cd "$(dirname "$0")/.."

packages="clang llvm libbpf-dev libbpf1 bpftool fio qemu-system-x86 qemu-system-arm kmod zstd xz-utils busybox-static
	python3-venv python3-dev make pkg-config dwarves fdisk dmsetup groff-base xfsprogs btrfs-progs
	python3-cffi-backend python3-pyelftools python3-rich patchelf rpm mandoc zsh fish
	chromium poppler-utils otf2-tools mdadm cryptsetup-bin jq openssl systemd"
demo_packages="clang llvm libbpf-dev libbpf1 make pkg-config fio python3-cffi python3-cffi-backend python3-pyelftools python3-rich"
# Only for the tests of whole packages.
package_tools="debootstrap dpkg-dev debhelper dh-python lintian rpmlint python3-cffi python3-shtab zstd"

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages LIST [NEWEST]: with the newest clang where the second word is not empty.
install_packages() {
	if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
		echo "setup: this is not Debian; install the counterparts of:" $1 >&2
		return
	fi
	missing=
	for package in $1; do
		status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=
		[ "$status" = installed ] || missing="$missing $package"
	done
	# Objects are compiled by the distribution's clang and by its newest one.
	compilers=$(ls /usr/bin/clang-[0-9]* 2>/dev/null | grep -c 'clang-[0-9]*$' || true)
	wanted=${2:-}
	[ "$compilers" -lt 2 ] || wanted=
	[ -n "$missing$wanted" ] || return 0
	echo "setup: installing$missing${wanted:+ and the newest clang}"
	if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
		echo "setup: run as root: apt-get install$missing" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	as_root apt-get update -qq
	newest=
	[ -z "$wanted" ] || newest=$(apt-cache search --names-only '^clang-[0-9]+$' | cut -d ' ' -f 1 | sort -V | tail -n 1)
	as_root apt-get install -y -qq --no-install-recommends $missing $newest
}

make_venv() {
	# Written last, so a broken-off run is done again.
	stamp=.venv/.wptrace-dev
	if [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ]; then return; fi
	echo "setup: making .venv"
	[ -x .venv/bin/python ] || python3 -m venv .venv
	# By a path, and not by a finder, which takes longer to import than the whole command line. The library for OTF2 has
	# no wheels for Pythons after 3.11, and is compiled there.
	CC=clang .venv/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
		--editable '.[dev]'
	touch "$stamp"
}

# A viewer that tests open exported stacks in; there is none on PyPI. Its pages are all in this one package.
fetch_speedscope() {
	[ ! -d .venv/speedscope ] || return 0
	rm -rf .venv/new-speedscope
	mkdir .venv/new-speedscope
	npm pack --silent --pack-destination .venv/new-speedscope speedscope@1.25.0 >/dev/null
	tar -xzf .venv/new-speedscope/*.tgz -C .venv/new-speedscope --strip-components=1
	mv .venv/new-speedscope .venv/speedscope
}

case "${1:-all}" in
all)
	install_packages "$packages" newest
	make_venv
	;;
demo) install_packages "$demo_packages" ;;
packages) install_packages "$package_tools" ;;
npm)
	# Node.js from elsewhere than Debian brings it along; Debian's has hundreds of packages.
	command -v npm >/dev/null || install_packages npm
	fetch_speedscope
	;;
venv) make_venv ;;
*)
	echo "usage: tests/setup.sh [demo | packages | npm | venv]" >&2
	exit 2
	;;
esac

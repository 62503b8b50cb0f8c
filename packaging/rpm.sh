#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds packaging/wptrace.spec from what is in git, by this system's rpm, for x86-64 and arm64: objects are compiled by
# clang for either, and nothing else depends on the machine.
#
#   packaging/rpm.sh FOLDER [RPMBUILD-OPTION...]
set -eu
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
python=$(command -v "${PYTHON:-.venv/bin/python}") || { echo 'rpm: .venv is missing: run make setup' >&2; exit 1; }
case $python in /*) ;; *) python=$PWD/$python ;; esac

lacking=
needs() {
	eval "$2" >/dev/null 2>&1 || lacking="$lacking, $1"
}
needs 'rpmbuild (Fedora: rpm-build, Debian: rpm)' 'command -v rpmbuild'
if command -v dpkg >/dev/null && ! rpm --query rpm >/dev/null 2>&1; then
	# This rpm knows nothing of what dpkg has installed, so it is looked for here; tests are what `make test-unit` runs.
	needs clang 'command -v clang'
	needs llvm 'command -v llvm-strip || ls /usr/bin/llvm-strip-*'
	needs libbpf-dev 'test -e /usr/include/bpf/bpf_tracing.h'
	needs make 'command -v make'
	needs 'cffi of Python' '"$python" -c "import cffi"'
	needs 'shtab of Python' '"$python" -c "import shtab"'
	set -- --nodeps --without check --define "build_python $python" --define '_libdir /usr/lib64' "$@"
fi
[ -z "$lacking" ] || { echo "rpm: this system lacks ${lacking#, }" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" packaging/dist.py --kind sdist --out "$work/sdist" >/dev/null
mkdir "$work/SOURCES"
cp "$work"/sdist/wptrace-*.tar.gz "$work/SOURCES/"
# The same bytes each time: the time of all of it is the changelog's, and no name of the machine is in it.
for machine in x86_64 aarch64; do
	rpmbuild -bb --target "$machine" --define "_topdir $work" --define "_buildhost localhost" \
		--define "use_source_date_epoch_as_buildtime 1" --define "source_date_epoch_from_changelog 1" \
		--define "clamp_mtime_to_source_date_epoch 1" --define "build_mtime_policy clamp_to_source_date_epoch" "$@" \
		packaging/wptrace.spec >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
done
cp "$work"/RPMS/*/*.rpm "$out/"

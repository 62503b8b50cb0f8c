#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds packaging/wptrace.spec from what is in git, by this system's rpm: packaging/rpm.sh FOLDER [RPMBUILD-OPTION...]
set -eu
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
command -v rpmbuild >/dev/null || { echo 'rpm: rpmbuild is missing: install rpm-build (Debian: rpm)' >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-.venv/bin/python}" packaging/dist.py --kind sdist --out "$work/sdist" >/dev/null
mkdir "$work/SOURCES"
cp "$work"/sdist/wptrace-*.tar.gz "$work/SOURCES/"
# The same bytes each time: the time of all of it is the changelog's, and no name of the machine is in it.
rpmbuild -bb --define "_topdir $work" --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
	--define "source_date_epoch_from_changelog 1" --define "clamp_mtime_to_source_date_epoch 1" \
	--define "build_mtime_policy clamp_to_source_date_epoch" "$@" packaging/wptrace.spec >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
cp "$work"/RPMS/*/*.rpm "$out/"

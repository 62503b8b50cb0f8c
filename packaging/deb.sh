#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds packaging/debian from what is in git, by this Debian's tools, for amd64 and arm64: objects are compiled by clang
# for either, and nothing else depends on the machine.
#
#   packaging/deb.sh FOLDER
set -eu
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
for tool in dpkg-buildpackage dh dh_python3; do
	command -v $tool >/dev/null || { echo "deb: $tool is missing: install dpkg-dev debhelper dh-python" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-.venv/bin/python}" packaging/dist.py --kind sdist --out "$work/sdist" >/dev/null
# The time of what is packed is the last entry's of debian/changelog.
for machine in amd64 arm64; do
	mkdir "$work/$machine"
	tar -xf "$work"/sdist/wptrace-*.tar.gz -C "$work/$machine"
	(
		cd "$work/$machine"/wptrace-*
		cp -r packaging/debian debian
		# Tests run once: there is one package for both but for its objects.
		[ "$machine" = "$(dpkg --print-architecture)" ] || export DEB_BUILD_OPTIONS=nocheck
		dpkg-buildpackage -b -us -uc -d --host-arch "$machine" >"$work/log" 2>&1
	) || { tail -n 40 "$work/log" >&2; exit 1; }
	cp "$work/$machine"/*.deb "$out/"
done

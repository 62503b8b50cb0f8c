#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shows what wptrace does: a scratch disk that takes four requests at a time, a database on it, and a backup that gets in
# its way after some seconds. The last lines name it.
#
# On the running kernel if that can trace, otherwise in a guest. Only the scratch disk is traced.
#
#   tests/demo.sh [guest | on DISK | load DISK]
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
cgroups=
trap cleanup EXIT

cleanup() {
	[ -z "$(jobs -p)" ] || { kill $(jobs -p) 2>/dev/null || true; wait || true; }
	for name in $cgroups; do rmdir "$name" 2>/dev/null || true; done
	[ -z "${scratch:-}" ] || losetup --detach "$scratch" 2>/dev/null || true
	rm -rf "$folder"
}

# run CGROUP NAME FIO-OPTION...: fio by the name of what it stands for, in a cgroup where there are any.
run() {
	[ -z "$cgroups" ] || echo $BASHPID >"$top/$1/cgroup.procs"
	ln -sf "$(command -v fio)" "$folder/$2"
	exec "$folder/$2" --name="$2" --filename="$disk" --direct=1 --time_based --output=/dev/null "${@:3}"
}

# A database for so many seconds, and five seconds later the backup.
load() {
	disk=$1 seconds=$2 queue=/sys/block/$(basename "$1")/queue
	echo none >"$queue/scheduler" 2>/dev/null || true
	echo 4 >"$queue/nr_requests" 2>/dev/null || true
	top=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	if [ -n "$top" ] && mkdir "$top/database" "$top/backup" 2>/dev/null; then
		cgroups="$top/database $top/backup"
	fi
	half=$(($(blockdev --getsize64 "$disk") / 2 / 1048576))M
	(run database postgres --rw=randread --bs=8k --size=$half --ioengine=psync --thinktime=2ms --runtime="$seconds") &
	(
		sleep 5
		run backup rsync --rw=read --bs=1M --offset=$half --size=$half --ioengine=libaio --iodepth=32 --runtime=$((seconds - 5))
	) &
}

trace() {
	# On a busy machine the trace takes long to begin: both go on until it is over.
	load "$1" 3600
	by=cgroup
	[ -n "$cgroups" ] || by=comm
	# Live where there is a terminal, then a summary; elsewhere the summary alone.
	pace="12 1"
	[ ! -t 1 ] || pace="1 12"
	echo "demo: wptrace io --dev $1 --by $by --neighbours $pace"
	$python -m wptrace io --dev "$1" --by $by --neighbours $pace
}

scratch() {
	truncate --size 512M "$folder/disk.img"
	scratch=$(losetup --find --show "$folder/disk.img")
	echo "demo: $scratch is a scratch disk of 512 MiB in $folder"
}

in_guest() {
	echo "demo: this kernel cannot trace (wptrace doctor says why), so a guest with Linux 6.12 and an nvme disk shows it"
	tests/setup.sh
	.venv/bin/python -m tests.lab fetch 6.12
	exec .venv/bin/python -m tests.lab run --kernel 6.12 --disk nvme -- tests/demo.sh on /dev/nvme0n1
}

case "${1:-}" in
on) trace "$2" ;;
load)
	load "$2" 11
	wait
	;;
guest) in_guest ;;
"")
	if [ "$(id -u)" = 0 ] && $python -m wptrace doctor >/dev/null 2>&1 && losetup --find >/dev/null 2>&1; then
		scratch
		trace "$scratch"
	else
		in_guest
	fi
	;;
*)
	echo "usage: tests/demo.sh [guest | on DISK | load DISK]" >&2
	exit 2
	;;
esac

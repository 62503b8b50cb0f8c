#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shows what wptrace does: a scratch disk, a small workload on it, and wptrace's live result for it.
#
# On the running kernel if that can trace, otherwise in a guest. Only the scratch disk is traced.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python

# trace DISK: a workload that reads, writes and syncs, and wptrace beside it.
trace() {
	disk=$1
	work() {
		fio --name="$1" --filename="$disk" --size=48M --direct=1 --time_based --output=/dev/null "${@:2}"
	}
	(
		sleep 1
		work reads --rw=randread --bs=4k --ioengine=psync --runtime=4 --rate_iops=2000
		work deep --rw=randrw --bs=16k --ioengine=libaio --iodepth=32 --runtime=3
		work synced --rw=randwrite --bs=4k --ioengine=psync --sync=dsync --runtime=2
	) &
	$python -m wptrace io --dev "$disk" --hist device --stats 2 6
	wait
}

here() {
	folder=$(mktemp -d)
	trap 'losetup --detach "$disk" 2>/dev/null; rm -rf "$folder"' EXIT
	truncate --size 64M "$folder/disk.img"
	disk=$(losetup --find --show "$folder/disk.img")
	echo "demo: $disk is a scratch disk of 64 MiB in $folder"
	trace "$disk"
}

in_guest() {
	echo "demo: this kernel cannot trace (wptrace doctor says why), so a guest with Linux 6.12 and an nvme disk shows it"
	$python -m tests.lab fetch 6.12
	exec $python -m tests.lab run --kernel 6.12 --disk nvme -- tests/demo.sh on /dev/nvme0n1
}

case "${1:-}" in
on) trace "$2" ;;
guest) in_guest ;;
"")
	if [ "$(id -u)" = 0 ] && $python -m wptrace doctor >/dev/null 2>&1 && losetup --find >/dev/null 2>&1; then
		here
	else
		in_guest
	fi
	;;
*)
	echo "usage: tests/demo.sh [guest | on DISK]" >&2
	exit 2
	;;
esac

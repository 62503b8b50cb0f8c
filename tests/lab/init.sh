# SPDX-License-Identifier: Apache-2.0
# First process of a guest, run by a static busybox from the initial RAM disk. What differs between runs
# comes in /lab/settings, which tests/lab/initrd.py writes. What this script prints goes to the console.

# Stage one: drivers, and the root file system with a RAM disk over it.

first_stage() {
	mkdir -p /proc /sys /dev /lower /over /new
	mount -t proc proc /proc
	mount -t sysfs sys /sys
	mount -t devtmpfs dev /dev
	while read -r module; do
		insmod "/modules/$module" || echo "lab: cannot load $module"
	done </modules/order
	mount -t 9p -o "ro,$LAB_ROOT_OPTIONS" root /lower || give_up "no root file system"
	mount -t tmpfs -o mode=755,size=75% over /over
	mkdir /over/upper /over/work
	mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work root /new ||
		give_up "no overlay over the root file system"
	mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp
	mount --move /proc /new/proc
	mount --move /sys /new/sys
	mount --move /dev /new/dev
	mount -t tmpfs -o mode=755 run /new/run
	cp -a /lab /new/run/lab
	exec switch_root /new /run/lab/busybox sh /run/lab/init second
}

# Stage two: what a command finds on any Linux machine, then the command.

second_stage() {
	mkdir -p /dev/pts /dev/shm /run/lock
	mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
	mount -t tmpfs -o mode=1777 shm /dev/shm
	chmod 1777 /tmp
	ln -sf /proc/self/fd /dev/fd
	ln -sf fd/0 /dev/stdin
	ln -sf fd/1 /dev/stdout
	ln -sf fd/2 /dev/stderr
	mount -t debugfs debugfs /sys/kernel/debug
	mount -t tracefs tracefs /sys/kernel/tracing
	mount -t bpf bpf /sys/fs/bpf
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	hostname lab
	ip link set lo up

	modules=/lib/modules/$(uname -r)
	mkdir -p "$modules"
	mount -t 9p -o "ro,$LAB_ROOT_OPTIONS" modules "$modules"
	echo "$LAB_SHARES" | while read -r tag mode path; do
		[ "$tag" ] || continue
		mkdir -p "$path"
		case $mode in
		rw) mount -t 9p -o "rw,$LAB_SHARE_OPTIONS" "$tag" "$path" ;;
		# Like the root file system: what is written is gone afterwards.
		ro)
			over=/run/lab/over/$tag
			mkdir -p "$over/lower" "$over/upper" "$over/work"
			mount -t 9p -o "ro,$LAB_ROOT_OPTIONS" "$tag" "$over/lower" &&
				mount -t overlay -o "lowerdir=$over/lower,upperdir=$over/upper,workdir=$over/work" "$tag" "$path"
			;;
		esac || give_up "cannot mount $path"
	done

	for disk in $LAB_DISKS; do
		wait_for "disk $disk" test -b "/dev/$disk"
	done
	for port in out err end; do
		wait_for "port $port" port_device "$port"
	done

	cd "$LAB_DIRECTORY" || give_up "no directory $LAB_DIRECTORY"
	# Through pipes: a virtio port cannot be opened a second time, as by `echo >/dev/stderr`.
	mkfifo /run/lab/out /run/lab/err
	relay out &
	out=$!
	relay err &
	err=$!
	setsid sh /run/lab/command </dev/null >/run/lab/out 2>/run/lab/err
	code=$?

	# What the command left running holds the pipes open.
	for process in /proc/[0-9]*; do
		process=${process#/proc/}
		case $process in 1 | "$out" | "$err") continue ;; esac
		[ "$(readlink "/proc/$process/exe")" ] && ! is_relay "$process" && kill -9 "$process"
	done
	wait "$out" "$err"
	echo "$LAB_SHARES" | while read -r _ mode path; do
		[ "$mode" = rw ] && { umount "$path" || sync; }
	done
	echo "$code" >"$(port_device end)"
	# The host has all it wants now, and ends the machine.
	while :; do sleep 1000; done
}

relay() {
	{
		cat "/run/lab/$1"
		printf '\0%s\0' "$LAB_MARK"
	} >"$(port_device "$1")"
}

is_relay() {
	case $(cut -d ' ' -f 4 "/proc/$1/stat") in "$out" | "$err") return 0 ;; esac
	return 1
}

port_device() {
	for port in /sys/class/virtio-ports/*; do
		[ "$(cat "$port/name" 2>/dev/null)" = "$1" ] || continue
		echo "/dev/${port##*/}"
		return 0
	done
	return 1
}

wait_for() {
	what=$1
	shift
	tries=0
	until "$@" >/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || give_up "no $what after a minute"
		sleep 0.1
	done
}

give_up() {
	echo "lab: $1"
	# Ends the machine at once, so the host need not wait for its time limit.
	reboot -f
}

case $1 in
second)
	. /run/lab/settings
	PATH=/run/lab/bin
	/run/lab/busybox mkdir -p /run/lab/bin
	/run/lab/busybox --install -s /run/lab/bin
	second_stage
	;;
*)
	. /lab/settings
	PATH=/bin
	/lab/busybox mkdir -p /bin
	/lab/busybox --install -s /bin
	first_stage
	;;
esac

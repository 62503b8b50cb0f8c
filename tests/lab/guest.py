# SPDX-License-Identifier: Apache-2.0
"""Run a command in a guest: a kernel of the matrix on this machine's own root file system.

This starts QEMU itself instead of virtme-ng. With an init script that needs neither udev nor a network a guest boots in
a third of the time, the console is separate from the command's output, and a panic or a hang differs from a failed
command. Changes to the root file system go to a RAM disk and are lost.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import cache, initrd, modules, qemu, roots
from tests.lab.errors import GuestDiedError, GuestHungError, LabError, UsageError
from tests.lab.fetch import Installed, fetch
from tests.lab.matrix import Kernel, host_arch
from tests.lab.packages import say
from tests.lab.streams import Marked, console_tail, panic

Sink = Callable[[bytes], object]

_9P_OPTIONS = "trans=virtio,version=9p2000.L,msize={}"
# The guest caches what it has read, because what it uses of the root file system does not change while it runs.
_ROOT_OPTIONS = f"{_9P_OPTIONS},cache=loose"
# This machine sees what the guest wrote as soon as it is written.
_SHARE_OPTIONS = f"{_9P_OPTIONS},cache=mmap"
_TREE = Path(__file__).parents[2]
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = ("LANG", "TERM", "VIRTUAL_ENV", "PYTHONPATH", "NO_COLOR", "COLUMNS", "CI")
_PASSED_PREFIXES = ("WPTRACE_", "LC_", "PYTEST_")


@dataclass(frozen=True)
class Guest:
    kernel: Kernel
    machine: qemu.Machine = field(default_factory=qemu.Machine)
    disks: tuple[qemu.Disk, ...] = ()
    disk_size: int = 256 << 20
    images: tuple[qemu.Image, ...] = ()
    """Files for the first disks, instead of empty ones."""
    timeout: float = 600.0
    silence: float = 0.0
    """Give up a guest that prints nothing for so long, because emulated CPUs may hang; 0: never."""
    share: tuple[Path, ...] = ()
    """Directories in which files that the guest writes stay."""
    console: Path | None = None
    """The file that keeps the console."""
    ports: tuple[qemu.Port, ...] = ()
    """More ports of virtio-serial than the lab's own."""
    vsock: Path | None = None
    """The socket of a process that offers vsock by vhost-user."""


@dataclass(frozen=True)
class Result:
    code: int
    output: bytes
    """Standard output and standard error, as they came."""

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


def run(guest: Guest, command: Sequence[str], out: Sink | None = None, err: Sink | None = None) -> Result:
    """Run the command in the current directory; `out` and `err` get its output while it runs."""
    if guest.kernel.running:
        return run_here(guest, command, out, err)
    binary = qemu.machine_arguments(guest.machine, guest.kernel.arch)[0]
    if not shutil.which(binary):
        package = {"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}[guest.kernel.arch]
        raise LabError(f"{binary} is not there: install the package {package}")
    installed = fetch(guest.kernel)
    root = Path("/") if guest.kernel.arch == host_arch() else roots.fetch(roots.GUEST, guest.kernel.arch)
    with cache.guest_slot(lambda: say("waiting for another guest to finish")), _directory() as directory:
        return _Run(guest, installed, root, directory).run(command, out, err)


def run_here(guest: Guest, command: Sequence[str], out: Sink | None, err: Sink | None) -> Result:
    """Run the command on the running kernel."""
    if guest.disks:
        raise UsageError("the running kernel is no guest: it gets no disks")
    # The variable tells a command that it runs in a guest.
    environment = {name: value for name, value in os.environ.items() if name != "WPTRACE_LAB_KERNEL"}
    try:
        process = subprocess.Popen(
            # The exit code is that of a guest: 127 for what cannot be run.
            ["/usr/bin/env", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error.strerror}") from error
    output = bytearray()
    deadline = time.monotonic() + guest.timeout
    with process, _killed(process), selectors.DefaultSelector() as selector:
        assert process.stdout
        assert process.stderr
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            events = selector.select(0.2)
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if data:
                    output += data
                    if key.data:
                        key.data(data)
                else:
                    selector.unregister(key.fileobj)
            # A process that the command left behind may hold the pipes open.
            if (not events and process.poll() is not None) or time.monotonic() > deadline:
                break
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"the command did not end within {guest.timeout:g} s"
            raise GuestHungError(why, output=bytes(output)) from None
    return Result(128 - code if code < 0 else code, bytes(output))


class _Run:
    """One guest, from its files to its end."""

    def __init__(self, guest: Guest, installed: Installed, root: Path, directory: Path) -> None:
        self.guest = guest
        self.installed = installed
        self.root = root
        self.directory = directory
        self.console = directory / "console"
        self.messages = directory / "qemu"
        self.mark = secrets.token_hex(16)
        self.output = bytearray()

    def run(self, command: Sequence[str], out: Sink | None, err: Sink | None) -> Result:
        mark = b"\0" + self.mark.encode() + b"\0"
        ports = [
            _Port("out", self.directory, Marked(mark), out),
            _Port("err", self.directory, Marked(mark), err),
            _Port("end", self.directory, Marked(b"\n"), None),
        ]
        arguments = self._arguments(command, ports)
        with self.messages.open("wb") as messages, selectors.DefaultSelector() as selector:
            for port in ports:
                selector.register(port.listener, selectors.EVENT_READ, port)
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )
            try:
                with process, _killed(process):
                    self._relay(process, selector, ports)
            finally:
                for port in ports:
                    port.close()
                self._keep_console()
        return Result(int(ports[2].data), bytes(self.output))

    def _relay(self, process: subprocess.Popen[bytes], selector: selectors.BaseSelector, ports: list[_Port]) -> None:
        heard = time.monotonic()
        deadline = heard + self.guest.timeout
        while not all(port.stream.ended for port in ports):
            now = time.monotonic()
            left = deadline - now
            silent = self.guest.silence and now - heard > self.guest.silence
            if left <= 0 or silent:
                why = "printed nothing for" if silent else "did not finish within"
                limit = self.guest.silence if silent else self.guest.timeout
                raise GuestHungError(f"the guest {why} {limit:g} s", self._console_tail(), bytes(self.output))
            gone = process.poll() is not None
            events = selector.select(0 if gone else min(left, 0.2))
            for key, _ in events:
                port: _Port = key.data
                if key.fileobj is port.listener:
                    selector.unregister(port.listener)
                    selector.register(port.accept(), selectors.EVENT_READ, port)
                    continue
                data = port.receive()
                if data is None:
                    selector.unregister(key.fileobj)
                elif port.name != "end":
                    self.output += data
                    heard = now
            if gone and not events:
                for port in ports[:2]:
                    self.output += port.flush()
                why = self._last_words(process.returncode)
                raise GuestDiedError(why, self._console_tail(), bytes(self.output))

    def _arguments(self, command: Sequence[str], ports: Sequence[_Port]) -> list[str]:
        guest, installed, directory = self.guest, self.installed, self.directory
        images = list(guest.images)
        for number in range(len(images), len(guest.disks)):
            images.append(qemu.Image(directory / f"disk{number}"))
            with images[-1].path.open("wb") as file:
                file.truncate(guest.disk_size)
        shares = [qemu.Share(f"share{number}", path, "rw") for number, path in enumerate(guest.share)]
        built = modules.directory(installed)
        if self.root != Path("/"):
            # Before the others, because one of them may be inside.
            trees = dict.fromkeys((_TREE, Path.cwd(), *([built] if built.is_dir() else [])))
            shares[:0] = [qemu.Share(f"tree{n}", path) for n, path in enumerate(trees)]
        settings = {
            "LAB_ROOT_OPTIONS": _ROOT_OPTIONS.format(guest.kernel.message),
            "LAB_SHARE_OPTIONS": _SHARE_OPTIONS.format(guest.kernel.message),
            "LAB_SHARES": "".join(f"{share.tag} {share.mode} {share.path}\n" for share in shares),
            "LAB_DISKS": " ".join(qemu.disk_names(guest.disks)),
            "LAB_DIRECTORY": str(Path.cwd()),
            "LAB_MARK": self.mark,
        }
        ram_disk = directory / "initrd"
        variables = environment(guest.kernel, own_root=self.root != Path("/"))
        variables["WPTRACE_LAB_MODULES"] = str(built)
        if self.root == Path("/"):
            variables["WPTRACE_LAB_CACHE"] = str(cache.directory())
        initrd.write(ram_disk, installed, self.root, settings, command_script(command, variables))
        arguments = [
            *qemu.machine_arguments(guest.machine, guest.kernel.arch),
            *qemu.kernel_arguments(guest.machine, guest.kernel.arch, installed.image, ram_disk, self.console),
            *qemu.port_arguments([*(qemu.Port(port.name, port.path) for port in ports), *guest.ports]),
            *qemu.share_arguments(
                [
                    qemu.Share("root", self.root),
                    qemu.Share("modules", installed.modules),
                    *shares,
                ]
            ),
            *qemu.disk_arguments(guest.disks, images),
            *(qemu.vsock_arguments(guest.machine, guest.vsock) if guest.vsock else []),
        ]
        # If the lab is killed, its guest dies as well.
        if shutil.which("setpriv"):
            arguments = ["setpriv", "--pdeathsig", "KILL", *arguments]
        return arguments

    def _console_tail(self) -> str:
        return console_tail(self.console.read_bytes()) if self.console.is_file() else ""

    def _last_words(self, code: int) -> str:
        console = self.console.read_text("utf-8", "replace") if self.console.is_file() else ""
        why = panic(console)
        if why:
            return f"the guest's kernel panicked: {why}"
        ours = [line for line in console.splitlines() if line.startswith("lab: ")]
        if ours:
            return f"the guest gave up: {ours[-1][5:]}"
        if code:
            said = self.messages.read_text("utf-8", "replace").strip().splitlines()
            return f"QEMU failed: {said[-1] if said else f'exit code {code}'}"
        if "Run /init" not in console:
            return "the guest's kernel did not boot (is --memory large enough?)"
        return "the guest switched itself off before the command ended"

    def _keep_console(self) -> None:
        if self.guest.console and self.console.is_file():
            shutil.copyfile(self.console, self.guest.console)


class _Port:
    """The lab's side of a virtio serial port."""

    def __init__(self, name: str, directory: Path, stream: Marked, sink: Sink | None) -> None:
        self.name = name
        self.path = directory / name
        self.stream = stream
        self.sink = sink
        self.data = b""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(1)
        self._connection: socket.socket | None = None

    def accept(self) -> socket.socket:
        self._connection = self.listener.accept()[0]
        return self._connection

    def receive(self) -> bytes | None:
        """Return what came; empty at the end."""
        assert self._connection
        try:
            data = self._connection.recv(1 << 18)
        except ConnectionResetError:
            return None
        return self._pass_on(self.stream.feed(data)) if data else None

    def flush(self) -> bytes:
        return self._pass_on(self.stream.rest())

    def _pass_on(self, data: bytes) -> bytes:
        if self.name == "end":
            self.data += data
        if data and self.sink:
            self.sink(data)
        return data

    def close(self) -> None:
        self.listener.close()
        if self._connection:
            self._connection.close()


def command_script(command: Sequence[str], variables: Mapping[str, str]) -> bytes:
    """A shell script that becomes the command, with these variables and no others."""
    # The command has its path, because the init script's own PATH has busybox.
    words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]
    return f"exec {shlex.join(words)}\n".encode("utf-8", "surrogateescape")


def environment(kernel: Kernel, own_root: bool = False) -> dict[str, str]:
    """Return the environment of the command. Another root file system has no paths of this machine."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)) and not (own_root and "/" in value)
    }
    paths = [] if own_root else os.environ.get("PATH", "").split(":")
    paths += _SYSTEM_PATH.split(":")
    variables.update(
        PATH=":".join(dict.fromkeys(path for path in paths if path.startswith("/"))),
        HOME="/root",
        USER="root",
        LOGNAME="root",
        SHELL="/bin/sh",
        WPTRACE_LAB_KERNEL=kernel.name,
    )
    return variables


@contextmanager
def _killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process's group at the end, whatever happens."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wptrace-lab-") as name:
        yield Path(name)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a small vmlinux.h from the BTF of a kernel: only the types that types.txt names.

    vmlinux/generate.py /boot/vmlinuz-6.12.1-amd64 -o vmlinux/x86_64/vmlinux.h
    vmlinux/generate.py /sys/kernel/btf/vmlinux --release "$(uname -r)" -o vmlinux.h

The kernel may be raw BTF, an ELF file or a compressed boot image. A full header would be 3 MB, and clang
would copy the closure of every type that a program touches into the object; here a type that is not listed
stays a forward declaration.
"""

from __future__ import annotations

import argparse
import lzma
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from wptrace.bpf.btf import (  # noqa: E402
    Array,
    Btf,
    Composite,
    Const,
    Enum,
    FuncProto,
    Fwd,
    Member,
    Modifier,
    Ptr,
    Restrict,
    Struct,
    Type,
    Typedef,
    Union,
    Void,
    Volatile,
)
from wptrace.errors import UsageError, WptraceError  # noqa: E402

BTF_HEADER = b"\x9f\xeb\x01\x00\x18\x00\x00\x00\x00\x00\x00\x00"
BANNER = re.compile(rb"Linux version (\S+) ")
ENTRY = re.compile(r"(?:(x86_64|arm64): )?(struct|union|enum|typedef) (with \w+|\w+)(?::((?: +\w+)+))?")
KINDS = {"struct": Struct, "union": Union, "enum": Enum, "typedef": Typedef}
QUALIFIERS = {Const: "const", Volatile: "volatile", Restrict: "restrict"}


def unpacked(image: bytes) -> Iterator[bytes]:
    """The image itself, then what decompresses out of it: boot images do not say where it starts."""
    yield image
    for match in re.finditer(rb"\x1f\x8b\x08|\xfd7zXZ\x00|\x28\xb5\x2f\xfd", image):
        data = image[match.start() :]
        try:
            if match.group().startswith(b"\x1f"):
                yield zlib.decompressobj(wbits=31).decompress(data)
            elif match.group().startswith(b"\xfd"):
                yield lzma.LZMADecompressor().decompress(data)
            else:
                # zstd fails at the bytes behind the frame, after it wrote the kernel.
                command = ["zstd", "--decompress", "--stdout", "--quiet", "--memory=1024MB"]
                yield subprocess.run(command, input=data, capture_output=True, check=False).stdout
        except (zlib.error, lzma.LZMAError):
            continue


def read_btf(image: bytes) -> tuple[Btf, str]:
    """The BTF of a kernel image and its release (empty where the image does not say)."""
    for data in unpacked(image):
        at = data.find(BTF_HEADER)
        while at >= 0:
            try:
                size = 24 + sum(struct.unpack_from("<2I", data, at + 16))
                btf = Btf.parse(data[at : at + size])
            except (WptraceError, struct.error):
                at = data.find(BTF_HEADER, at + 1)
                continue
            if btf.find("task_struct", Struct):
                banner = BANNER.search(data)
                return btf, banner.group(1).decode() if banner else ""
            at = data.find(BTF_HEADER, at + 1)
    raise UsageError("no kernel BTF found in this file")


def machine(btf: Btf) -> str:
    for arch, name, field in (("x86_64", "pt_regs", "ip"), ("arm64", "user_pt_regs", "pstate")):
        registers = btf.find(name, Struct)
        if registers and any(member.name == field for member in registers.members):
            return arch
    raise UsageError("this kernel is neither x86_64 nor arm64")


def read_list(text: str, arch: str) -> list[tuple[str, str, list[str]]]:
    """The entries of types.txt for one machine: kind, name (or `with VALUE`), fields (none: all)."""
    lines: list[str] = []
    for raw in text.splitlines():
        line = raw.split("#")[0].rstrip()
        if line.startswith((" ", "\t")) and lines:
            lines[-1] += line
        elif line:
            lines.append(line)
    entries = []
    for line in lines:
        match = re.fullmatch(r"(?:(x86_64|arm64): )?(struct|union|enum|typedef) (with \w+|\w+)(?::((?: +\w+)+))?", line)
        if not match:
            raise UsageError(f"types.txt: cannot read '{line}'")
        if match[1] in (None, arch):
            entries.append((match[2], match[3], (match[4] or "").split()))
    return entries


class Header:
    """Emits C declarations in an order in which each compiles."""

    def __init__(self, btf: Btf) -> None:
        self._btf = btf
        self._fields: dict[str, frozenset[str]] = {}
        self._forward: set[str] = set()
        self._seen: set[tuple[int, bool]] = set()
        self._done: set[str] = set()
        self._out: list[str] = []

    def write(self, entries: list[tuple[str, str, list[str]]]) -> str:
        roots = []
        missing = []
        for kind, name, fields in entries:
            root = self._find(kind, name)
            if not root:
                missing.append(f"{kind} {name}")
                continue
            roots.append(root)
            if isinstance(root, Composite) and fields:
                known = {member.name for member in self._flat(root)}
                missing += [f"{kind} {name}: {field}" for field in fields if field not in known]
                self._fields[tag(root)] = frozenset(fields)
        if missing:
            raise UsageError("this kernel lacks what types.txt asks for:\n  " + "\n  ".join(missing))
        for root in roots:
            self._need(root.id, by_value=True)
            if isinstance(root, Enum) and not root.name:
                self._define(f"enum {root.id}", self._specifier(root, ""))
        return "".join(f"{name};\n" for name in sorted(self._forward)) + "\n" + "\n".join(self._out)

    def _find(self, kind: str, name: str) -> Type | None:
        if not name.startswith("with "):
            return self._btf.find(name, KINDS[kind])
        for entry in self._btf:
            if isinstance(entry, Enum) and any(each.name == name[5:] for each in entry.values):
                return entry
        return None

    def _need(self, type_id: int, by_value: bool) -> None:
        """Emit what must stand before a use of the type."""
        if (type_id, by_value) in self._seen:
            return
        self._seen.add((type_id, by_value))
        entry = self._btf.type(type_id)
        if isinstance(entry, Ptr):
            self._need(entry.type, by_value=False)
        elif isinstance(entry, Array):
            self._need(entry.element, by_value=True)
        elif isinstance(entry, FuncProto):
            for each in (entry.type, *(param.type for param in entry.params)):
                self._need(each, by_value=False)
        elif isinstance(entry, Modifier):
            self._need(entry.type, by_value)
            if isinstance(entry, Typedef):
                self._define(f"typedef {entry.name}", f"typedef {self._declare(entry.type, entry.name, '')}")
        elif isinstance(entry, Fwd) or (isinstance(entry, Composite) and entry.name and not by_value):
            self._forward.add(tag(entry))
        elif isinstance(entry, Composite):
            self._need_members(entry, self._fields.get(tag(entry)))
            if entry.name:
                self._define(tag(entry), self._specifier(entry, ""))
        elif isinstance(entry, Enum) and entry.name:
            self._define(tag(entry), self._specifier(entry, ""))

    def _need_members(self, owner: Composite, fields: frozenset[str] | None) -> None:
        for member, inner_fields in self._chosen(owner, fields):
            inner = self._inner(member)
            if inner and inner_fields:
                self._need_members(inner, inner_fields)
            else:
                self._need(member.type, by_value=True)

    def _define(self, key: str, text: str) -> None:
        if key not in self._done:
            self._done.add(key)
            self._out.append(text + ";\n")

    def _inner(self, member: Member) -> Composite | None:
        """The struct or union that an anonymous member is."""
        inner = self._btf.resolve(member.type)
        return inner if not member.name and isinstance(inner, Composite) else None

    def _flat(self, owner: Composite) -> Iterator[Member]:
        """The members of a struct, those of its anonymous members in their place."""
        for member in owner.members:
            inner = self._inner(member)
            if inner:
                yield from self._flat(inner)
            else:
                yield member

    def _chosen(
        self, owner: Composite, fields: frozenset[str] | None
    ) -> Iterator[tuple[Member, frozenset[str] | None]]:
        """The members to emit, each with the choice to make inside it where it is anonymous."""
        for member in owner.members:
            inner = self._inner(member)
            if fields is None or member.name in fields:
                yield member, None
            elif inner and any(each.name in fields for each in self._flat(inner)):
                yield member, fields

    def _declare(self, type_id: int, name: str, indent: str, fields: frozenset[str] | None = None) -> str:
        """`int (*name)[3]`: the C declaration of something of that type."""
        qualifiers = ""
        entry = self._btf.type(type_id)
        while not isinstance(entry, Typedef) and isinstance(entry, Modifier):
            qualifiers += f"{QUALIFIERS[type(entry)]} " if type(entry) in QUALIFIERS else ""
            entry = self._btf.type(entry.type)
        if isinstance(entry, Ptr):
            return self._declare(entry.type, f"*{qualifiers}{name}", indent)
        nested = f"({name})" if name.startswith("*") else name
        if isinstance(entry, Array):
            return qualifiers + self._declare(entry.element, f"{nested}[{entry.count}]", indent)
        if isinstance(entry, FuncProto):
            params = ", ".join(
                self._declare(param.type, param.name, indent) if param.type else "..." for param in entry.params
            )
            return self._declare(entry.type, f"{nested}({params or 'void'})", indent)
        named = entry.name or isinstance(entry, Void)
        specifier = spell(entry) if named else self._specifier(entry, indent, fields)
        return f"{qualifiers}{specifier} {name}".rstrip()

    def _specifier(self, entry: Type, indent: str, fields: frozenset[str] | None = None) -> str:
        """The definition of a struct, union or enum, without the semicolon."""
        lines = []
        inside = indent + "\t"
        if isinstance(entry, Enum):
            lines = [f"{inside}{each.name} = {literal(each.value, entry)},\n" for each in entry.values]
        elif isinstance(entry, Composite):
            chosen = self._chosen(entry, fields or self._fields.get(tag(entry)))
            for member, inner_fields in chosen:
                _, bits = self._btf.bits(member)
                text = self._declare(member.type, member.name, inside, inner_fields)
                lines.append(f"{inside}{text}{f' : {bits}' if bits else ''};\n")
        return f"{tag(entry).rstrip()} {{\n{''.join(lines)}{indent}}}"


def literal(value: int, enum: Enum) -> str:
    if -(1 << 31) <= value < 1 << 31:
        return str(value)
    return f"{value:#x}{'ULL' if enum.size > 4 else 'U'}" if value >= 0 else f"{value}LL"


def tag(entry: Type) -> str:
    """`struct name`: how C refers to a struct, union or enum."""
    if isinstance(entry, Enum):
        return f"enum {entry.name}"
    union = entry.is_union if isinstance(entry, Fwd) else isinstance(entry, Union)
    return f"{'union' if union else 'struct'} {entry.name}"


def spell(entry: Type) -> str:
    if isinstance(entry, Void):
        return "void"
    return tag(entry) if isinstance(entry, (Composite, Fwd, Enum)) else entry.name


TEMPLATE = """\
/* Generated by vmlinux/generate.py from the BTF of Linux {release} ({arch}{source}); do not edit. */
/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

/* Offsets mean nothing here: structs are cut down, every access is relocated when the object is loaded. */
#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

{types}
#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", type=Path, help="raw BTF, an ELF file with BTF, or a boot image")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--types", type=Path, default=HERE / "types.txt", help="default: beside this script")
    parser.add_argument("--release", help="where the file does not say: the release of the kernel")
    parser.add_argument("--source", help="where the file came from, such as the name of a package")
    args = parser.parse_args()
    btf, release = read_btf(args.kernel.read_bytes())
    arch = machine(btf)
    release = release or args.release
    if not release:
        raise UsageError(f"{args.kernel} does not say which release it is: use --release")
    source = f", {args.source}" if args.source else ""
    types = Header(btf).write(read_list(args.types.read_text(), arch))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(TEMPLATE.format(release=release, arch=arch, source=source, types=types))
    sys.stdout.write(f"{args.output}: {args.output.stat().st_size} bytes, Linux {release} ({arch})\n")


if __name__ == "__main__":
    try:
        main()
    except (WptraceError, OSError) as error:
        sys.exit(f"generate.py: {error}")

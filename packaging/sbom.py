# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials: CycloneDX, by its own library."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bundle import Part

LICENCE = "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"


def of(version: str, parts: Sequence[Part], when: int) -> str:
    """The same text for the same parts: neither its number nor its time are of now."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    own = Component(
        name="wptrace",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"wptrace@{version}",
        licenses=[LicenseExpression(LICENCE)],
    )
    components = []
    for part in parts:
        arch = {"x86_64": "amd64"}.get(part.machine, part.machine)
        purl = (
            PackageURL("deb", "debian", part.name, part.version, {"arch": arch})
            if part.debian
            else PackageURL("pypi", None, part.name, part.version, {"file_name": part.source})
        )
        components.append(
            Component(
                name=part.name,
                version=part.version,
                type=ComponentType.LIBRARY,
                bom_ref=part.source,
                purl=purl,
                licenses=[LicenseExpression(part.licence)],
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.digest)],
                properties=[Property(name="wptrace:file", value=part.source)],
            )
        )
    named = f"wptrace {version} {when} {' '.join(part.digest for part in parts)}"
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, named),
        metadata=BomMetaData(component=own, timestamp=datetime.fromtimestamp(when, timezone.utc)),
    )
    bom.register_dependency(own, components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"

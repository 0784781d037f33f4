"""The OpenTelemetry resource of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource


def service_resource(attributes: Mapping[str, str | int]) -> Resource:
    """Return the resource with `attributes`, over which OTEL_SERVICE_NAME and
    OTEL_RESOURCE_ATTRIBUTES take precedence."""
    from opentelemetry.sdk.resources import Resource

    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    set_ = {pair.partition("=")[0].strip() for pair in given.split(",")}
    if os.environ.get("OTEL_SERVICE_NAME"):
        set_.add("service.name")
    return Resource.create({name: v for name, v in attributes.items() if name not in set_})

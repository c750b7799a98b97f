"""The Parquet export of the store: what queries and other engines read."""

from __future__ import annotations

from moescope.storage.export.errors import ExportError
from moescope.storage.export.exporter import Exporter, export_all
from moescope.storage.export.manifest import Manifest, read_manifest

__all__ = ["ExportError", "Exporter", "Manifest", "export_all", "read_manifest"]

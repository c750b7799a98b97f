"""Importers: recorded routing of other tools, into the batch log."""

from moescope.producers.importers.errors import ImportFormatError, TooManyRejectsError
from moescope.producers.importers.importing import import_files
from moescope.producers.importers.registry import FORMATS
from moescope.producers.importers.report import FileReport, ImportReport, Reject

__all__ = [
    "FORMATS",
    "FileReport",
    "ImportFormatError",
    "ImportReport",
    "Reject",
    "TooManyRejectsError",
    "import_files",
]

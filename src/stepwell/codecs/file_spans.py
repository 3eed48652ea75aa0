"""The names of `stepwell.references.file_spans`, under their old module: deprecated."""

from stepwell.lazy import moved

__getattr__ = moved(__name__, "stepwell.references.file_spans")

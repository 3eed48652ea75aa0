"""The names of `stepwell.files.regular_files`, under their old module: deprecated."""

from stepwell.lazy import moved

__getattr__ = moved(__name__, "stepwell.files.regular_files")

"""The names of `stepwell.files.local_files`, under their old module: deprecated."""

from stepwell.lazy import moved

__getattr__ = moved(__name__, "stepwell.files.local_files")

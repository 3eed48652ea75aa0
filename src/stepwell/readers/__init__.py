"""Readers of the smaller formats, one class in one file each; `stepwell.formats` finds them by looking."""

"""Transforms: what is done to the windows of a batch before it is handed over."""

"""Rows that lie in files of other systems: what refers to them, and how the files are found and read."""

"""Rows that lie in files of other systems: references to them, and how the files are found and read."""

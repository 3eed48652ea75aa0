"""Helpers that tests of several folders import by name; a file here is no test."""

# imported by tests that skip without PyAV
collect_ignore = ["written_videos.py"]

"""Helpers that tests of several folders import by name; a file here is no test."""

# imported by tests that skip without PyAV; run by interpreters that have nothing of Linux
collect_ignore = ["written_videos.py", "without_linux"]

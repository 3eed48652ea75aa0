"""recorders."""

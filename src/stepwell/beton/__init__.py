"""FFCV's ``.beton`` files: read in place or taken into a store."""

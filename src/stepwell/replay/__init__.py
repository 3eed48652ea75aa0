"""Replay: tables of items over a store that grows, and loaders that sample them."""

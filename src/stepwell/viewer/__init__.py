"""A page that shows the episodes of a store."""

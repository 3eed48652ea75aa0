"""Building blocks of what notebooks show: HTML, pixels, figures; they know neither stores nor batches."""

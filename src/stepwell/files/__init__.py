"""Local files as the rest uses them: regular ones, kept open, mapped, locked; values that threads share."""

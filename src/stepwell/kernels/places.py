"""The rows of places and the columns of tables of pieces: their only definition, which needs no numba.

::

    places, int64 [PLACE_ROWS, n]     where each anchor lies, and between which rows its windows may reach
    places, int64 [OUTER_ROWS, n]     and the bounds of the whole episode, which a ring has cut into pieces
    chains, int64 [P, CHAIN_COLUMNS]  the pieces of such episodes
"""

from __future__ import annotations

__all__ = [
    "CHAIN",
    "CHAIN_COLUMNS",
    "CHAIN_SEGMENT",
    "CHAIN_START",
    "CHAIN_STEP",
    "EPISODE",
    "HI_FINAL",
    "HI_STEP",
    "LO",
    "OUTER_FINAL",
    "OUTER_LO",
    "OUTER_ROWS",
    "OUTER_STEP",
    "PLACE_ROWS",
    "ROW",
    "SEGMENT",
]

# the rows of the episode's steps are [LO, HI_STEP); HI_FINAL counts its final row too
EPISODE, SEGMENT, ROW, LO, HI_STEP, HI_FINAL = range(6)
PLACE_ROWS = 6
# the same three bounds of the whole episode, counted in rows of the anchor's own piece
OUTER_LO, OUTER_STEP, OUTER_FINAL = 6, 7, 8
OUTER_ROWS = 9

# which pieces belong together; where each lies; the number of its first step in the episode
CHAIN, CHAIN_SEGMENT, CHAIN_START, CHAIN_STEP = range(4)
CHAIN_COLUMNS = 4

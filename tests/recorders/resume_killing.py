"""A process that records with resume=True, to be killed in the middle of it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import parallel_sources as sources

from stepwell.recorders import write_episodes

if __name__ == "__main__":
    target, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    source = sources.MarkedEpisodes(folder, seconds=0.05)
    write_episodes(target, source, workers=workers, chunk_episodes=2, resume=True, schema=sources.MARKED)

"""What the codecs' tests share is imported by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# imported by tests that skip without PyAV
collect_ignore = ["written_videos.py"]

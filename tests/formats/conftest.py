"""What the formats' tests share is imported by name, also by the processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# imported by name: as modules of the tests their readers would be registered twice
collect_ignore = ["folder_reader.py", "shard_reader.py"]

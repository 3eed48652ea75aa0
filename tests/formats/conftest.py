"""What the formats' tests share is imported by name, also by the processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# imported by name: as a module of the tests its reader would be registered twice
collect_ignore = ["folder_reader.py"]

"""What the recorders' tests share is imported by name, also by the processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# programs of their own, imported by name: as a module of the tests codecs would be registered twice
collect_ignore = ["conversion_killing.py", "resume_killing.py"]

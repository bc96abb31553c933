"""Makes llo_helpers.py importable by the tests beside it (the suite runs in importlib mode)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

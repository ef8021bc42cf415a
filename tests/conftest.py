"""What every test relies on: one thread, and helper modules that lie beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

# Steps are over before a second thread wakes up. Set before torch is loaded; children inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("costream", deadline=None)
settings.load_profile("costream")

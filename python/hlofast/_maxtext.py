"""What the command line and the front of MaxText both know, without importing one another."""

from __future__ import annotations

DEFAULTS = "MaxText's defaults"
"""What stands in place of the file of a run that has none."""

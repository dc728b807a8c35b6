"""Programs that measure, tune, and make pages of what was measured; the package imports none."""

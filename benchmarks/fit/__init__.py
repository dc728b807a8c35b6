"""The campaign that selection is fitted to: cells drawn, candidates timed, every time kept."""

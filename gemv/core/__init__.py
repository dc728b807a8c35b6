"""What every other room uses: problems, dtypes, rules, errors, traces; needs NumPy alone."""

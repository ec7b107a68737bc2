"""How curves are judged: NumPy and SciPy only."""

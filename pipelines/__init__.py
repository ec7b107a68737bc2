"""How many runs are planned, launched, followed and promoted."""

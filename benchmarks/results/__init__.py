"""Results that can be recomputed: summaries of runs, and the tables, values and pictures that are made from them."""

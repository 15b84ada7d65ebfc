"""The script, or the notebook, that this process executes."""

#: Where notebooks and scripts define their names.
MAIN = "__main__"

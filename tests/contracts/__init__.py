"""What every part of a kind must keep: `check_KIND(name)` raises AssertionError for what it does not.

For a part of your own package, with `tests` of a checkout of FedGSP in PYTHONPATH:
`python -m contracts grouping=NAME`.
"""

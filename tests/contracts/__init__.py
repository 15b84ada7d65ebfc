"""What every part of a kind must keep: `check_KIND(name)` raises AssertionError for what it does not.

For a part of your own package, in a checkout of FedGSP:
`python -m tests.contracts grouping=NAME`.
"""

"""Sizes of the models that are transferred, in float32 parameters."""

#: LEAF's CNN for FEMNIST: 26.4 MB.
LEAF_CNN = 6_603_710
#: 250 MB.
LARGE = 62_500_000
#: 1 GB.
HUGE = 250_000_000
#: 0.4 MB. A hop of such a model costs little more than its messages.
SMALL = 100_000

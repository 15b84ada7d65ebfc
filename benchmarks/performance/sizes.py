"""Models that are moved, in float32 parameters."""

#: LEAF's CNN for FEMNIST: 26.4 MB.
LEAF_CNN = 6_603_710
#: 250 MB.
LARGE = 62_500_000
#: 0.4 MB, of which a hop costs little more than its messages.
SMALL = 100_000

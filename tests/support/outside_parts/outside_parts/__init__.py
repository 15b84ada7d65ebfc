"""One part of each kind for FedGSP, in a package that is installed beside it."""

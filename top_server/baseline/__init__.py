"""The local run: what every client reaches when all clients train alone, for comparison."""

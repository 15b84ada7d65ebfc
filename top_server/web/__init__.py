"""The web page of runs: it reads what runs record, and writes nothing. A process of its own serves it."""

"""The federation folder: a CA, the registry of nodes and their clients, and how nodes get certificates from both."""

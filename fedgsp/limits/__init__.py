"""How much a peer may send, ask for and hold open. Every limit is checked before the work that it saves."""

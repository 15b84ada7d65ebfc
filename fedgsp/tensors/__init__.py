"""Models as bytes: named tensors in one buffer, their memory, and what else travels beside them."""

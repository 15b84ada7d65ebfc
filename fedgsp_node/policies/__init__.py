"""What the policy of a node lets in, and how much of it orders have used."""

"""Training a draft: batches, the TTT forward, the loop, resume."""

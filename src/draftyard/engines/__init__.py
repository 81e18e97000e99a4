"""Running the verifier: vLLM in process, and the hidden-states connector."""

"""Running the verifier: vLLM in a supervised child process, the hidden-states connector, and an endpoint."""

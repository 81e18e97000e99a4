"""What a build is told: one frozen dataclass per group of params.yaml."""

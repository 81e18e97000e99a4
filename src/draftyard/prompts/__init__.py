"""From sources of prompts to a clean train and holdout split."""

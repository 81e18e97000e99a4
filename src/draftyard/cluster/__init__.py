"""Engines on other machines: a Ray cluster makes the shards, the stage that asked for them publishes."""

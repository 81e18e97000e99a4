"""Showing a build: metrics, the markdown and the html report."""

"""Proving a draft: static checks, simulation, serving measurements."""

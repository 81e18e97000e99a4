"""The draft model: geometry, vocabulary maps, checkpoint layouts."""

"""Out-of-memory messages and warnings of the partitioner: what they are, hold and ask for."""

"""How XLA deals arrays out to devices: a model of its partitioner, for lookups in tables."""

"""The interactive view of a module in a terminal: what a report shows, as sorted tables."""

"""The interactive view of a module in a terminal: the contents of a report as sorted tables."""

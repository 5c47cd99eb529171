//! What follows from the graph alone: how often instructions run, and whom they belong to.

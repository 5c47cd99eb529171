//! What instructions cost: FLOPs, transcendentals, bytes.

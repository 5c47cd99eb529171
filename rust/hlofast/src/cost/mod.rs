//! What instructions cost: FLOPs, transcendentals, bytes.

pub mod convolution;
pub mod custom_call;
pub mod matmul;

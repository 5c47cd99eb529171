//! The devices for which XLA is known to write other values than for others.

/// Such a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// TPU v5e.
    V5e,
    /// TPU v5p.
    V5p,
    /// TPU v6e.
    V6e,
    /// Any GPU.
    Gpu,
}

impl Chip {
    /// The chip of a device and its backend, as the table of devices has them.
    pub fn of(device: &str, backend: &str) -> Option<Self> {
        match (device, backend) {
            ("tpu-v5e", _) => Some(Chip::V5e),
            ("tpu-v5p", _) => Some(Chip::V5p),
            ("tpu-v6e", _) => Some(Chip::V6e),
            (_, "gpu") => Some(Chip::Gpu),
            _ => None,
        }
    }
}

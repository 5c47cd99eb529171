//! The figures of a chip as plain numbers, which the caller supplies.

use crate::ir::{ElementKind, ElementType};

/// A chip. Figures are per chip; a JAX device gets its share. None means unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// The name used in messages.
    pub name: String,
    /// The backend whose programs it runs, as in the table of devices; empty if unknown.
    pub backend: String,
    /// Whether the chip is a TPU, whose compiler works in windows and tiles.
    pub is_tpu: bool,
    /// Whether the chip is a GPU, whose kernels run one after the other.
    pub is_gpu: bool,
    /// Peaks in operations per second by name: `bf16`, `f8`, `s8`, `tf32`, `f32` and so on.
    pub peaks: Vec<(String, f64)>,
    /// Usable bytes of HBM.
    pub hbm_usable_bytes: Option<f64>,
    /// Bytes to which the pointer table of a tuple is rounded up.
    pub tuple_table_bytes: Option<f64>,
    /// HBM bytes per second.
    pub hbm_bandwidth: Option<f64>,
    /// HBM bytes per second that the compiler assumes (TPU) or kernels reach (GPU).
    pub hbm_achieved_bandwidth: Option<f64>,
    /// Seconds of latency of an HBM access.
    pub hbm_latency: Option<f64>,
    /// Bytes per second of VMEM or of the last-level cache.
    pub fast_memory_bandwidth: Option<f64>,
    /// Bytes per second between a chip and its host, in one direction.
    pub host_bandwidth: Option<f64>,
    /// Clock in hertz.
    pub clock: Option<f64>,
    /// TensorCores or multiprocessors.
    pub cores: Option<f64>,
    /// JAX devices per chip.
    pub jax_devices: Option<f64>,
    /// Rows and columns of a systolic array.
    pub matrix_unit_size: Option<f64>,
    /// Rows below which loading weights into a systolic array takes longer than the matmul.
    pub matrix_unit_minimum_rows: Option<f64>,
    /// Cycles until a matmul delivers its first results.
    pub matrix_unit_latency: Option<f64>,
    /// Cycles between the matmuls of two windows.
    pub matrix_unit_restart: Option<f64>,
    /// Vector operations per cycle and core, in vectors of 1024 elements.
    pub vector_operations: Option<f64>,
    /// Seconds to launch one kernel.
    pub launch: Option<f64>,
    /// Compute capability of an NVIDIA chip, such as 9.0.
    pub compute_capability: Option<f64>,
    /// Share of the peak that large matmuls of 16-bit floats reach.
    pub matmul_efficiency: Option<f64>,
    /// Seconds of an all-reduce of a few bytes among the chips of a host.
    pub collective_latency: Option<f64>,
    /// Share of the links' bandwidth that large collectives reach.
    pub link_efficiency: Option<f64>,
    /// The interconnect topology.
    pub topology: Option<Topology>,
    /// An axis of a torus wraps around if its size is a multiple of this.
    pub wraparound_multiple: Option<f64>,
    /// Links per chip.
    pub link_count: Option<f64>,
    /// Bytes per second of one link in one direction.
    pub link_bandwidth: Option<f64>,
    /// Seconds per hop.
    pub link_latency: Option<f64>,
    /// Bytes per second per chip between hosts or slices.
    pub network_bandwidth: Option<f64>,
    /// Seconds per message between hosts or slices.
    pub network_latency: Option<f64>,
    /// Growth of a step by waiting for other slices: the logarithm of its factor per doubling.
    pub slice_wait: Option<f64>,
    /// Seconds to launch a collective between hosts.
    pub network_launch: Option<f64>,
    /// Seconds of a round trip between hosts.
    pub network_round_trip: Option<f64>,
    /// Seconds to prepare one 4 MiB chunk.
    pub network_chunk_preparation: Option<f64>,
    /// Bytes per second that collectives achieve between hosts.
    pub network_achieved_bandwidth: Option<f64>,
    /// Chips per host.
    pub chips_per_host: Option<f64>,
}

/// The interconnect topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each chip has neighbours in this many dimensions.
    Torus(u8),
    /// Every chip reaches every other through a switch at full bandwidth.
    Switch,
    /// Every chip has a direct link to every other.
    FullyConnected,
}

impl Topology {
    /// The topology for its name in device tables.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "torus-2d" => Some(Topology::Torus(2)),
            "torus-3d" => Some(Topology::Torus(3)),
            "switch" => Some(Topology::Switch),
            "fully-connected" => Some(Topology::FullyConnected),
            _ => None,
        }
    }
}

macro_rules! figures {
    ($($name:ident),* $(,)?) => {
        /// Sets the figure `name`; returns false if the name is unknown.
        pub fn set(&mut self, name: &str, value: f64) -> bool {
            match name {
                $(stringify!($name) => self.$name = Some(value),)*
                _ => return false,
            }
            true
        }
    };
}

impl Device {
    figures!(
        hbm_usable_bytes,
        tuple_table_bytes,
        hbm_bandwidth,
        hbm_achieved_bandwidth,
        hbm_latency,
        fast_memory_bandwidth,
        host_bandwidth,
        clock,
        cores,
        jax_devices,
        matrix_unit_size,
        matrix_unit_minimum_rows,
        matrix_unit_latency,
        matrix_unit_restart,
        vector_operations,
        launch,
        compute_capability,
        matmul_efficiency,
        collective_latency,
        link_efficiency,
        wraparound_multiple,
        link_count,
        link_bandwidth,
        link_latency,
        network_bandwidth,
        network_latency,
        slice_wait,
        network_launch,
        network_round_trip,
        network_chunk_preparation,
        network_achieved_bandwidth,
        chips_per_host,
    );

    /// One JAX device's share of a per-chip figure.
    pub fn share(&self, figure: Option<f64>) -> Option<f64> {
        Some(figure? / self.jax_devices?)
    }

    /// Peak of one JAX device in operations per second, under the first of `names` that is known.
    pub fn peak(&self, names: &[&str]) -> Option<f64> {
        let find = |name: &str| self.peaks.iter().find(|peak| peak.0 == name).map(|peak| peak.1);
        self.share(names.iter().find_map(|name| find(name)))
    }

    /// The names of the matmul peak for `element_type`, best first.
    pub fn peak_names(&self, element_type: ElementType) -> &'static [&'static str] {
        let is_float = element_type.kind() == ElementKind::Float;
        match (element_type, element_type.bits()) {
            (ElementType::Bf16, _) => &["bf16"],
            (ElementType::F16, _) if self.is_tpu => &["bf16"],
            (ElementType::F16, _) => &["f16", "bf16"],
            // A TPU multiplies 32-bit floats in passes of 16-bit floats, a GPU as TF32.
            (_, 32) if is_float && self.is_tpu => &["bf16"],
            (_, 32) if is_float => &["tf32", "f32"],
            (_, 64) if is_float => &["f64"],
            (_, 8) if is_float && self.is_tpu => &["f8", "bf16"],
            (_, 8) if is_float => &["f8"],
            (_, 4) if is_float => &["f4"],
            (_, 1 | 8) => &["s8"],
            (_, 2 | 4) => &["s4", "s8"],
            _ => &[],
        }
    }
}

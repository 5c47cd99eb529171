//! Modules in XLA's binary form: `HloModuleProto`, alone or inside `HloProto`, `HloSnapshot` and
//! similar messages.
//!
//! A proto is converted to the text that XLA would print for it, and that text is parsed like any
//! other, so all later stages see a single input format. Start at [`to_text`].

mod assignment;
mod attributes;
mod computation;
mod container;
mod convolution;
mod instruction;
mod lines;
mod literal;
mod metadata;
mod module;
mod out;
mod record;
mod shape;
mod sharding;
pub(crate) mod wire;
mod write;

use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Outline, Span};

pub use write::{NOT_IN_PROTO, Written, from_module, wrapped};

/// Tables keyed by numbers from the proto, with a hasher that prevents crafted collisions.
type Map<K, V> = hashbrown::HashMap<K, V, crate::ir::intern::BuildMix>;

/// Fields that HLO text lacks; reading a protobuf drops them.
pub const NOT_IN_TEXT: &[(&str, &str)] = &[
    ("HloModuleProto.id", "a process-local number"),
    ("HloModuleProto.cross_program_prefetches", "compiler state"),
    ("HloModuleProto.is_dynamic", "compiler state"),
    ("HloModuleProto.spmd_output_sharding", "the sharding of results before partitioning"),
    ("HloModuleProto.spmd_parameters_shardings", "the sharding of parameters before partitioning"),
    (
        "HloModuleProto.device_assignment",
        "devices; the counts become replica_count and num_partitions",
    ),
    ("HloModuleProto.use_auto_spmd_partitioning", "a compiler option"),
    ("HloModuleProto.profile_info", "compiler state"),
    ("HloModuleProto.device_type", "a compiler option"),
    ("HloModuleProto.pjrt_id", "a process-local number"),
    ("HloModuleProto.debug_attributes", "newer than the known printers"),
    ("HloComputationProto.id", "a number; text has names"),
    ("HloComputationProto.is_fusion_computation", "follows from its caller"),
    ("HloComputationProto.program_shape", "follows from parameters and root"),
    ("HloInstructionProto.id", "a number; text has names"),
    ("HloInstructionProto.outer_dimension_partitions", "no longer used"),
    ("HloInstructionProto.async_group_id", "no longer used; only old text has it"),
    ("OpMetadata.size_of_generated_code_in_bytes", "never printed"),
    ("OpMetadata.size_of_memory_working_set_in_bytes", "never printed"),
    ("OpMetadata.profile_info", "never printed"),
    ("LiteralProto.sparse_indices", "no longer used"),
    ("LiteralProto.dynamic_sizes", "never printed"),
];

/// The contents of a proto as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The module as XLA's text.
    pub text: Vec<u8>,
    /// XLA's buffer assignment of the module, in the format of the file `-buffer-assignment.txt`.
    pub buffer_assignment: Option<Vec<u8>>,
    /// The positions of the parts of the text's lines.
    pub(crate) outline: Outline,
}

/// Whether `bytes` look like a protobuf rather than text.
pub fn is_proto(bytes: &[u8]) -> bool {
    container::is_binary_message(bytes)
}

/// Whether a file that begins with `head` contains an `HloProto` or `HloModuleProto`, judging by
/// the names at its start. `is_proto` also accepts the other protobufs in dumps.
pub fn begins_with_module(head: &[u8]) -> bool {
    container::begins_with_module(head)
}

/// Whether `bytes`, or the beginning of them, are an entry of JAX's compilation cache.
pub fn is_cached(bytes: &[u8]) -> bool {
    container::cached_executable(bytes).is_some()
}

/// Converts the module in `bytes` to text. Errors give the byte offset.
///
/// Work and memory are linear in `bytes`; text far larger than the text of any real module is
/// refused.
pub fn to_text(bytes: &[u8]) -> Result<Translation> {
    let read = || {
        let container = match container::cached_executable(bytes) {
            Some(executable) if !is_proto(bytes) => container::find_in_executable(executable)?,
            _ => container::find(bytes)?,
        };
        module::to_text(container.module, container.assignment, 0)
    };
    read().map_err(|fault| located(bytes, fault))
}

/// The error for a fault in the protobuf `bytes`, with its place.
pub(crate) fn located(bytes: &[u8], fault: wire::Fault) -> ParseError {
    if fault.kind == ErrorKind::TooLarge {
        return ParseError::new(fault.kind, Span::EMPTY, fault.message);
    }
    let at = fault.at.wrapping_sub(bytes.as_ptr() as usize);
    let at = if at > bytes.len() { 0 } else { at.min(u32::MAX as usize) };
    let message = format!("{} (at byte {at} of the protobuf)", fault.message);
    ParseError::new(fault.kind, Span::new(at, at), message)
}

/// The name of the module in `bytes`, a protobuf that [`to_text`] reads.
pub(crate) fn module_name(bytes: &[u8]) -> Option<&[u8]> {
    container::name(bytes)
}

//! Modules in XLA's binary form: `HloModuleProto`, alone or inside `HloProto`, `HloSnapshot` and
//! their kin.
//!
//! A proto is turned into the text that XLA would print for it, and that text is read like any
//! other: what follows knows one form of input only. [`to_text`] is the whole of it.

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
mod wire;
mod write;

use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Outline, Span};

pub use write::{NOT_IN_PROTO, Written, from_module, wrapped};

/// Tables by numbers of the proto; collisions cannot be prepared.
type Map<K, V> = hashbrown::HashMap<K, V, crate::ir::intern::BuildMix>;

/// Fields that text does not have, so that they do not outlive reading.
pub const NOT_IN_TEXT: &[(&str, &str)] = &[
    ("HloModuleProto.id", "a number of the process"),
    ("HloModuleProto.cross_program_prefetches", "compiler state"),
    ("HloModuleProto.is_dynamic", "compiler state"),
    ("HloModuleProto.spmd_output_sharding", "the sharding of results before partitioning"),
    ("HloModuleProto.spmd_parameters_shardings", "the shardings of parameters before partitioning"),
    (
        "HloModuleProto.device_assignment",
        "its devices; its counts become replica_count and num_partitions",
    ),
    ("HloModuleProto.use_auto_spmd_partitioning", "a compiler option"),
    ("HloModuleProto.profile_info", "compiler state"),
    ("HloModuleProto.device_type", "a compiler option"),
    ("HloModuleProto.pjrt_id", "a number of the process"),
    ("HloModuleProto.debug_attributes", "newer than the printers known"),
    ("HloComputationProto.id", "numbers; names are what text has"),
    ("HloComputationProto.is_fusion_computation", "follows from its caller"),
    ("HloComputationProto.program_shape", "follows from parameters and root"),
    ("HloInstructionProto.id", "numbers; names are what text has"),
    ("HloInstructionProto.outer_dimension_partitions", "dead"),
    ("HloInstructionProto.async_group_id", "dead; earlier texts have it, those of today do not"),
    ("OpMetadata.size_of_generated_code_in_bytes", "never printed"),
    ("OpMetadata.size_of_memory_working_set_in_bytes", "never printed"),
    ("OpMetadata.profile_info", "never printed"),
    ("LiteralProto.sparse_indices", "dead"),
    ("LiteralProto.dynamic_sizes", "never printed"),
];

/// What stands in a proto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The module as XLA's text.
    pub text: Vec<u8>,
    /// XLA's account of the module's buffers, as the file `-buffer-assignment.txt` has it.
    pub buffer_assignment: Option<Vec<u8>>,
    /// Where the parts of the text's lines are.
    pub(crate) outline: Outline,
}

/// Whether `bytes` look like a protobuf rather than text.
pub fn is_proto(bytes: &[u8]) -> bool {
    container::is_binary_message(bytes)
}

/// Whether a file that begins with `head` holds an `HloProto` or an `HloModuleProto`, by the names
/// that they begin with: dumps have other protobufs too, for which `is_proto` also holds.
pub fn begins_with_module(head: &[u8]) -> bool {
    container::begins_with_module(head)
}

/// The module in `bytes` as text. Errors say at which byte.
///
/// Work and memory are linear in `bytes`; text far larger than any real module's is refused.
pub fn to_text(bytes: &[u8]) -> Result<Translation> {
    let read = || {
        let found = container::find(bytes)?;
        module::to_text(found.module, found.assignment, 0)
    };
    read().map_err(|fault: wire::Fault| {
        if fault.kind == ErrorKind::TooLarge {
            return ParseError::new(fault.kind, Span::EMPTY, fault.message);
        }
        let at = fault.at.wrapping_sub(bytes.as_ptr() as usize);
        let at = if at > bytes.len() { 0 } else { at.min(u32::MAX as usize) };
        let message = format!("{} (at byte {at} of the protobuf)", fault.message);
        ParseError::new(fault.kind, Span::new(at, at), message)
    })
}

//! Columns that many tables share, with one name and one meaning.

use super::Field;

macro_rules! fields {
    ($($name:ident = $kind:ident $($property:ident)*, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub fn $name() -> Field {
                Field::$kind(stringify!($name), $doc)$(.$property())*
            }
        )*
    };
}

fields! {
    instruction = instruction, "The row number of the instruction.";
    name = name, "The name of the instruction.";
    computation = name, "The computation that the instruction is in.";
    opcode = word, "The opcode.";
    shape = shape, "The shape of the result.";
    shape_bytes = bytes nullable summed, "Bytes of the result without padding.";
    op_name = scope nullable, "The framework's name for the operation.";
    source_file = path nullable, "The source file of the operation; by default, of the first \
        stack frame outside libraries.";
    source_line = index nullable, "The line in the source file; for a whole stack, the innermost \
        line.";
    phase = word, "The phase of the operation: forward, backward, recompute, optimizer or \
        unattributed.";
    scope = scope nullable, "The framework's scopes of the operation, outermost first.";
    provenance = word, "Provenance of the FLOPs.";
    is_lower_bound = flag, "Whether the figures are lower bounds: an enclosing loop of unknown \
        trip count counts once.";
    trip_count = count nullable, "Trip count of the innermost enclosing loop; 1 outside loops.";
    channel_id = index nullable, "The channel.";
    axes = axes nullable, "The mesh axes along which devices communicate.";
    group_size = count nullable, "Devices that take part in one call.";
    payload_in = bytes nullable, "Bytes of the operands on one device.";
    payload_out = bytes nullable, "Bytes of the result on one device.";
    tensor_kind = word, "The tensor kind of most of the bytes: weight, gradient, activation or other.";
    tensor = name nullable, "The array's name in the program; of several arrays, the first.";
    bytes = bytes nullable, "Bytes of the value.";
    transcendentals = count summed, "Transcendental functions of all calls.";
    bytes_accessed = bytes summed, "Bytes read and written in all memory spaces.";
    bytes_read = bytes summed, "Bytes read from HBM (memory space 0).";
    bytes_written = bytes summed, "Bytes written to HBM (memory space 0).";
    other_bytes_read = bytes summed, "Bytes read from memory spaces other than HBM.";
    other_bytes_written = bytes summed, "Bytes written to memory spaces other than HBM.";
    instructions = count summed, "Instructions in the text, each counted once.";
}

/// Calls of the instruction in a step.
pub fn multiplicity() -> Field {
    let doc = "Calls per step; unknown above 64 bits.";
    Field::count("multiplicity", doc).nullable().summed().label("calls")
}

/// Floating-point operations of all calls.
pub fn flops() -> Field {
    let doc = "FLOPs of all calls, without transcendentals.";
    Field::flops("flops", doc).summed().label("FLOP")
}

/// Bytes that each device sends.
pub fn wire_bytes() -> Field {
    let doc = "Bytes that each device sends in one execution, around a ring of the group: 2(n-1)/n of the payload for an all-reduce, the whole payload for a permute, (n-1)/n of the payload for other kinds.";
    Field::bytes("wire_bytes", doc).nullable().label("wire B")
}

/// The field of all calls, documented for one execution.
#[must_use]
pub fn once(mut field: Field) -> Field {
    field.doc = field.doc.replace(" of all calls", " of one execution").into();
    field
}

/// Floating-point operations of one execution.
pub fn flops_once() -> Field {
    Field::flops("flops", "Floating-point operations of one execution.").summed().label("FLOP")
}

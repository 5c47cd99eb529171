//! hlofast reads XLA HLO dumps into a frozen, column-oriented module and analyses them.
//!
//! [`parse()`] turns a [`text::Source`] into an [`ir::Module`]; [`unpack`] makes a source from
//! bytes and decompresses them or translates a protobuf where needed. [`Analyses`] answers
//! questions about the module: each analysis is a method, computed on first use. Facts that the
//! text does not contain (mesh, device, phase rules, costs of custom calls) go into a [`Context`].
//! [`profile`] reads what ran on devices, [`measure`] joins it with a module. The crate does not
//! depend on Python, and only [`dump`] reads files.
//!
//! # Cost by phase
//!
//! ```
//! use hlofast::cost::GroupKey;
//! use hlofast::text::OpenOptions;
//! use hlofast::{Analyses, Options, parse, unpack};
//!
//! // As read from a file.
//! let bytes = br#"HloModule step
//!
//! ENTRY main {
//!   x = f32[8,16] parameter(0)
//!   w = f32[16,4] parameter(1)
//!   y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp(M)/dot"}
//!   ROOT g = f32[16,4] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(M))/dot"}
//! }
//! "#;
//! let source = unpack(bytes.to_vec().into(), &OpenOptions::default())?;
//! let module = parse(source, &Options::default())?;
//! let analyses = Analyses::new(&module);
//! let flops = |phase: &str| {
//!     let phases = analyses.cost_by(GroupKey::Phase);
//!     let group = phases.iter().find(|group| group.label == phase.as_bytes());
//!     group.map(|group| group.totals.flops)
//! };
//! assert_eq!(flops("forward"), Some(2 * 8 * 16 * 4));
//! assert_eq!(flops("backward"), Some(2 * 8 * 16 * 4));
//! # Ok::<(), hlofast::ParseError>(())
//! ```
//!
//! # Collectives along mesh axes
//!
//! ```
//! use hlofast::comms::Mesh;
//! use hlofast::{Analyses, Context, Options, parse, text::Source};
//!
//! let text = "HloModule step, num_partitions=8
//!
//! sum {
//!   a = f32[] parameter(0)
//!   b = f32[] parameter(1)
//!   ROOT c = f32[] add(a, b)
//! }
//!
//! ENTRY main {
//!   p = f32[256] parameter(0)
//!   ROOT r = f32[256] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
//! }
//! ";
//! let module = parse(Source::from_slice(text.as_bytes()), &Options::default())?;
//! let mesh = Mesh::parse("data=2,model=4").ok();
//! let analyses = Analyses::with(&module, Context { mesh, ..Context::default() });
//! let sent = analyses.sent();
//! assert_eq!(sent.along[0].axes, "model");
//! assert_eq!(sent.collectives.collectives[0].payload(), Some(1024));
//! // What each device sends in a ring all-reduce.
//! assert_eq!(sent.wire_bytes(0), 1536);
//! # Ok::<(), hlofast::ParseError>(())
//! ```
//!
//! # Live values at the memory peak
//!
//! ```
//! use hlofast::{Analyses, Options, parse, text::Source};
//!
//! let text = "HloModule step, is_scheduled=true
//!
//! ENTRY main {
//!   p = f32[256] parameter(0)
//!   wide = f32[4,256] broadcast(p), dimensions={1}
//!   ROOT narrow = f32[1,4] slice(wide), slice={[0:1], [0:4]}
//! }
//! ";
//! let module = parse(Source::from_slice(text.as_bytes()), &Options::default())?;
//! let analyses = Analyses::new(&module);
//! let memory = analyses.memory()?;
//! assert_eq!(memory.peak.bytes, 1024 + 4096 + 16);
//! let largest = &memory.live_at(&module, memory.peak.step)[0];
//! assert_eq!(module.instruction_name(largest.row), b"wide");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Findings
//!
//! ```
//! use hlofast::{Analyses, Options, parse, text::Source};
//!
//! let text = "HloModule step, num_partitions=4
//!
//! ENTRY main {
//!   w = f32[64,64] parameter(0)
//!   a = f32[256,64] all-gather(w), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}
//!   b = f32[256,64] all-gather(w), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}
//!   ROOT c = f32[256,64] add(a, b)
//! }
//! ";
//! let module = parse(Source::from_slice(text.as_bytes()), &Options::default())?;
//! let analyses = Analyses::new(&module);
//! let finding = &analyses.lint().findings[0];
//! assert_eq!(finding.code, "gathered-twice");
//! println!("{}: {}", finding.message, finding.remedy);
//! # Ok::<(), hlofast::ParseError>(())
//! ```

pub mod analyses;
pub mod comms;
pub mod cost;
pub mod diff;
pub mod dump;
pub mod edit;
pub mod error;
pub mod flow;
pub mod ir;
pub mod lint;
pub mod measure;
pub mod memory;
pub mod parse;
pub mod print;
pub mod profile;
pub mod proto;
pub mod provenance;
pub mod remat;
pub mod scale;
pub mod select;
pub mod shares;
pub mod stages;
mod strict;
pub mod summary;
pub mod table;
pub mod text;
pub mod time;
pub mod trace;

pub use analyses::{Analyses, Context};
pub use error::{ErrorKind, ParseError, Result};
pub use parse::Options;
pub use provenance::Provenance;

use parse::Strictness;

/// What a file holds.
#[derive(Debug)]
pub enum Opened {
    /// Text, in which [`text::modules`] and [`text::read_one`] find the modules.
    Text(text::Source),
    /// A profile, with the modules of the programs that ran.
    Profile(profile::xplane::Space),
}

/// The contents of `bytes`, decompressed if compressed and translated if they are the protobuf of a
/// module.
pub fn open(bytes: text::SharedBytes, options: &text::OpenOptions<'_>) -> Result<Opened> {
    let source = text::unpack(bytes, options)?;
    if !proto::is_proto(source.bytes()) && !proto::is_cached(source.bytes()) {
        return Ok(Opened::Text(source));
    }
    if profile::xplane::is_space(source.bytes())
        && let Some(bytes) = source.shared()
    {
        return profile::xplane::Space::read(bytes).map(Opened::Profile);
    }
    let translation = proto::to_text(source.bytes())?;
    let proto::Translation { text, buffer_assignment, outline } = translation;
    Ok(Opened::Text(source.translated(text, buffer_assignment, outline)))
}

/// The text in `bytes`: [`open`], where a profile has to hold one module.
pub fn unpack(bytes: text::SharedBytes, options: &text::OpenOptions<'_>) -> Result<text::Source> {
    match open(bytes, options)? {
        Opened::Text(source) => Ok(source),
        Opened::Profile(space) => space.module_text(&space.only_module()?, options.path),
    }
}

/// Reads the only module in `source`, as strictly as `options` say.
///
/// A strict mode reads tolerantly first and then checks the text, so that every mode gives the
/// same module. With `collect_errors`, faults go to `Module::errors`. Strict modes refuse pieces of a
/// module ([`text::fragment`]).
pub fn parse(source: text::Source, options: &Options) -> Result<ir::Module> {
    if source.pieces().is_some() && options.strictness != Strictness::Tolerant {
        return Err(text::explain_no_module(source.bytes()));
    }
    let mut module = parse::read(source, options)?;
    if options.strictness != Strictness::Tolerant
        && let Err(error) = strict::check(&module, options.strictness)
    {
        if !options.collect_errors {
            return Err(error);
        }
        module.errors.push(error);
    }
    Ok(module)
}

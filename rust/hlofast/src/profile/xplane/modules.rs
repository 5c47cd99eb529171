//! The modules inside a profile: stat `Hlo Proto` of event metadata, in plane `/host:metadata`.

use super::{Place, Space, Value};
use crate::profile::build::named;
use crate::proto;
use crate::text::{Source, Span};
use crate::{ErrorKind, ParseError, Result};

/// A module inside a profile.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// The name that the profiler gives it: `jit_step(10)`.
    pub label: Box<str>,
    /// The module's name.
    pub name: Box<str>,
    /// The program's number.
    pub id: u64,
    /// Where its protobuf is in the file.
    place: Place,
}

impl Embedded {
    /// Where the module's protobuf begins in the (decompressed) file.
    pub fn offset(&self) -> usize {
        self.place.at as usize
    }

    /// Bytes of the module's protobuf.
    pub fn length(&self) -> usize {
        self.place.length as usize
    }

    /// Whether the module answers to `name`: its name, or the profiler's name for it.
    pub fn is_called(&self, name: &str) -> bool {
        &*self.name == name || &*self.label == name
    }
}

impl Space {
    /// The modules of the programs that ran while the profile was recorded, each program once.
    pub fn modules(&self) -> Vec<Embedded> {
        let whole = self.bytes();
        let mut found: Vec<Embedded> = Vec::new();
        for plane in self.planes() {
            let is_proto = |id| matches!(plane.stat_name(whole, id), b"Hlo Proto" | b"hlo_proto");
            for metadata in plane.event_metadata() {
                for stat in metadata.stats(whole) {
                    let Some(Value::Bytes(proto) | Value::Text(proto)) = stat.value else {
                        continue;
                    };
                    if proto.is_empty() || !is_proto(stat.id) {
                        continue;
                    }
                    let label = String::from_utf8_lossy(metadata.name(whole));
                    let (name, id) = named(&label);
                    let own = proto::module_name(proto).map(String::from_utf8_lossy);
                    let name = own.as_deref().unwrap_or(name).into();
                    // xprof takes the number of the metadata (hlo_proto_map.cc); its name agrees.
                    let id = id.unwrap_or(metadata.id as u64);
                    let place = Place::of(whole, proto);
                    let label = label.as_ref().into();
                    found.push(Embedded { label, name, id, place });
                }
            }
        }
        found
    }

    /// The module, if there is one alone.
    pub fn only_module(&self) -> Result<Embedded> {
        let modules = self.modules();
        match &modules[..] {
            [] => Err(without_modules()),
            [only] => Ok(only.clone()),
            _ => Err(several(&modules)),
        }
    }

    /// The text of an embedded module, as a source of its own.
    pub fn module_text(&self, module: &Embedded, path: Option<&str>) -> Result<Source> {
        let proto = module.place.get(self.bytes());
        let translation = proto::to_text(proto).map_err(|error| {
            let message = format!(
                "{} in the module {} of the profile, which begins at byte {}",
                error.message(),
                module.label,
                module.offset()
            );
            ParseError::new(error.kind(), error.span().shifted(module.offset() as u32), message)
        })?;
        let whole = Source::from_slice(b"");
        let whole = path.map_or(whole.clone(), |path| whole.with_path(path));
        let proto::Translation { text, buffer_assignment, outline } = translation;
        Ok(whole.translated(text, buffer_assignment, outline))
    }
}

/// The error for a profile without modules.
#[cold]
fn without_modules() -> ParseError {
    let message = "a profile that holds no HLO module";
    ParseError::new(ErrorKind::NoModule, Span::EMPTY, message).with_help(
        "jax.profiler keeps the modules of programs that run while it records; hlofast summary \
         shows contents of the profile",
    )
}

/// The error for a profile with several modules where one is wanted.
#[cold]
fn several(modules: &[Embedded]) -> ParseError {
    let names: Vec<&str> = modules.iter().take(4).map(|module| &*module.label).collect();
    let more = if modules.len() > names.len() { ", ..." } else { "" };
    let names = names.join(", ");
    let message =
        format!("a profile with {} modules where one was expected: {names}{more}", modules.len());
    ParseError::new(ErrorKind::SeveralModules, Span::EMPTY, message)
        .with_help("choose one by name, or use find_modules to get them all")
}

//! Where a figure comes from. Every analysis reports it beside the figure.

/// How a figure was obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Provenance {
    /// The figure follows from shapes and attributes alone.
    #[default]
    Exact,
    /// The compiler or the author of a kernel wrote the figure into `backend_config`.
    FromBackendConfig,
    /// The figure is the result of a stated model.
    Modelled,
    /// The figure rests on an assumption that the text does not confirm, such as the branch that a
    /// conditional takes.
    Assumed,
    /// The provenance is unknown, and the figure has no meaning.
    Unknown,
}

impl Provenance {
    /// Every provenance, by its code.
    pub const ALL: [Provenance; 5] = [
        Provenance::Exact,
        Provenance::FromBackendConfig,
        Provenance::Modelled,
        Provenance::Assumed,
        Provenance::Unknown,
    ];

    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Provenance::Exact => "exact",
            Provenance::FromBackendConfig => "from_backend_config",
            Provenance::Modelled => "modelled",
            Provenance::Assumed => "assumed",
            Provenance::Unknown => "unknown",
        }
    }
}

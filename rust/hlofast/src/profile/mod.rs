//! Profiles: what ran on devices, and when.
//!
//! Readers of the formats fill one [`Profile`]; everything after them knows no format.

mod events;

pub use events::{
    DeviceKind, Events, Launch, NONE, Names, Profile, ProfiledDevice, Program, Step, Track,
    TrackKind,
};

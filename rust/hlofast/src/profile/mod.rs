//! Profiles: what ran on devices, and when.
//!
//! Readers of the formats fill one [`Profile`]; everything after them knows no format. [`xplane`]
//! reads `*.xplane.pb`; [`load`] makes one profile of the files of several hosts.

mod build;
mod chrome;
mod events;
mod json;
mod lanes;
mod read;
pub mod xplane;

pub use events::{
    DeviceKind, Events, Launch, NONE, Names, Profile, ProfiledDevice, Program, Step, Track,
    TrackKind,
};
pub use read::{DeviceFacts, File, LineRow, Loaded, Module, is_profile, load};

use crate::error::ParseError;
use crate::proto;
use crate::proto::wire::Fault;

/// The error for a fault in the protobuf `whole`.
fn error(whole: &[u8], fault: Fault) -> ParseError {
    proto::located(whole, fault)
}

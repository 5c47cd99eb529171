//! The frozen intermediate representation: columns over rows, interned shapes, lazy attributes.

pub(crate) mod attribute;
pub mod attributes;
pub mod backend_config;
pub mod csr;
pub mod decode;
pub mod derived;
pub mod derived_metadata;
mod derived_rows;
pub mod dtype;
mod entry;
pub mod intern;
pub mod module;
pub mod opcode;
mod row_set;
pub mod shape;
pub mod shape_text;
pub mod size;
pub(crate) mod work;

pub use attributes::{Attribute, Attributes};
pub use csr::Csr;
pub use derived_metadata::MetadataColumns;
pub use dtype::{ElementKind, ElementType};
pub use intern::ShapeInterner;
pub use module::{
    Call, CallRole, Columns, Computation, ComputationId, Flags, Fragment, Header, Module, Row,
};
pub use opcode::{Arity, Opcode};
pub use shape::{
    ArrayShape, Dimension, FAST_SPACE, HOST_SPACE, Layout, ShapeId, ShapeTable, ShapeView,
};

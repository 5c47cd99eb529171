//! The input of a rule, and readers of operands and attributes that all rules share.

use super::dimension::agree;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{AttributeValue, WindowDimension, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{
    CallRole, Dimension, ElementKind, ElementType, Layout, Opcode, ShapeId, ShapeInterner,
    ShapeTable, ShapeView,
};
use crate::text::Span;
use hashbrown::HashMap;
use std::fmt;
use std::sync::Arc;

/// An instruction whose result shape is missing.
pub struct Request<'a> {
    /// The opcode.
    pub opcode: Opcode,
    /// Result shapes of the operands.
    pub operands: &'a [ShapeId],
    /// The attributes.
    pub attributes: &'a [Attribute<'a>],
    /// The called computations in text order.
    pub callees: &'a [Callee],
    /// Maximum number of leaves, tuples and buffers in a result.
    pub most_nodes: u32,
}

/// One attribute as written.
#[derive(Clone, Copy)]
pub struct Attribute<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The span of the value.
    pub at: Span,
}

/// One called computation.
pub struct Callee {
    /// The attribute that names it.
    pub role: CallRole,
    /// Parameter and result shapes; None if the computation is defined later in the text.
    pub signature: Option<Arc<Signature>>,
}

/// Parameter and result shapes of a computation.
pub struct Signature {
    /// Shapes of the parameters by number.
    pub parameters: Vec<ShapeId>,
    /// Shape of the root.
    pub result: ShapeId,
}

/// Signatures by computation, so that each signature is collected only once.
pub type Signatures = HashMap<u32, Arc<Signature>, BuildMix>;

/// An array shape that a rule works with.
#[derive(Clone)]
pub(super) struct Array {
    pub element_type: ElementType,
    pub dimensions: Vec<Dimension>,
    pub layout: Option<Layout>,
}

impl Array {
    pub fn new(element_type: ElementType, dimensions: Vec<Dimension>) -> Self {
        Self { element_type, dimensions, layout: None }
    }

    /// Changes the element type; elements then have the natural size of that type.
    pub fn set_element_type(&mut self, element_type: ElementType) {
        if self.element_type != element_type {
            self.element_type = element_type;
            self.set_element_bits(0);
        }
    }

    /// Bits per element, `E(n)`; 0 for the natural size of the type.
    pub fn element_bits(&self) -> i64 {
        self.layout.as_ref().map_or(0, |layout| layout.element_bits)
    }

    pub fn set_element_bits(&mut self, bits: i64) {
        if bits != self.element_bits() {
            let default = || Layout::with_order((0..self.dimensions.len() as i64).rev().collect());
            self.layout.get_or_insert_with(default).element_bits = bits;
        }
    }

    pub fn rank(&self) -> usize {
        self.dimensions.len()
    }

    pub fn is_scalar(&self) -> bool {
        self.dimensions.is_empty()
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element_type.as_str())?;
        for (index, dimension) in self.dimensions.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match dimension {
                Dimension::Static(size) => write!(f, "{comma}{size}")?,
                Dimension::Bounded(size) => write!(f, "{comma}<={size}")?,
                Dimension::Unbounded => write!(f, "{comma}?")?,
            }
        }
        f.write_str("]")
    }
}

/// The error for an opcode without a rule.
pub(super) fn cannot(opcode: Opcode) -> ParseError {
    ParseError::new(
        ErrorKind::CannotInferShape,
        Span::EMPTY,
        format!("cannot infer the omitted result shape of {}", opcode.as_str()),
    )
}

/// A request and the table of its shapes.
pub(super) struct Context<'r, 'i> {
    pub request: &'r Request<'r>,
    pub interner: &'i mut ShapeInterner,
}

impl<'r> Context<'r, '_> {
    pub fn opcode(&self) -> Opcode {
        self.request.opcode
    }

    pub fn table(&self) -> &ShapeTable {
        &self.interner.table
    }

    /// The error for operand shapes that do not fit the opcode.
    #[cold]
    pub fn mismatch(&self, message: impl fmt::Display) -> ParseError {
        let message = format!("{}: {message}", self.opcode().as_str());
        ParseError::new(ErrorKind::ShapeMismatch, Span::EMPTY, message)
    }

    /// The error for an invalid value of attribute `key`.
    #[cold]
    pub fn invalid(&self, key: &str, message: impl fmt::Display) -> ParseError {
        let at = self.attribute(key).map_or(Span::EMPTY, |attribute| attribute.at);
        let message = format!("{}: {message}", self.opcode().as_str());
        ParseError::new(ErrorKind::InvalidAttribute, at, message)
    }

    /// The error for a missing part that the rule needs.
    #[cold]
    pub fn missing(&self, what: impl fmt::Display) -> ParseError {
        let name = self.opcode().as_str();
        let message = format!("cannot infer the omitted result shape of {name} without {what}");
        ParseError::new(ErrorKind::CannotInferShape, Span::EMPTY, message)
    }

    /// Operand `index`, of any shape.
    pub fn operand(&self, index: usize) -> Result<ShapeId> {
        let operand = self.request.operands.get(index).copied();
        operand.ok_or_else(|| self.missing(format_args!("operand {index}")))
    }

    /// Operand `index`, which must be an array with elements.
    pub fn array(&self, index: usize) -> Result<Array> {
        let id = self.operand(index)?;
        self.as_array(id)
            .ok_or_else(|| self.mismatch(format_args!("operand {index} is not an array")))
    }

    /// All operands, which must be arrays.
    pub fn arrays(&self) -> Result<Vec<Array>> {
        (0..self.request.operands.len()).map(|index| self.array(index)).collect()
    }

    /// Shape `id` as an array with elements.
    pub fn as_array(&self, id: ShapeId) -> Option<Array> {
        match self.table().get(id) {
            ShapeView::Array(array) if array.element_type.kind() != ElementKind::Opaque => {
                Some(Array {
                    element_type: array.element_type,
                    dimensions: array.dimensions().collect(),
                    layout: array.layout.cloned(),
                })
            }
            _ => None,
        }
    }

    pub fn intern(&mut self, array: Array) -> ShapeId {
        let Array { element_type, dimensions, layout } = array;
        self.interner.array(element_type, &dimensions, layout, Span::EMPTY)
    }

    pub fn intern_tuple(&mut self, arrays: Vec<Array>) -> ShapeId {
        let ids: Vec<ShapeId> = arrays.into_iter().map(|array| self.intern(array)).collect();
        self.interner.tuple(&ids, Span::EMPTY)
    }

    /// Whether two shapes have the same structure and element types, and agreeing sizes.
    pub fn compatible(&self, a: ShapeId, b: ShapeId) -> bool {
        let table = self.table();
        let mut stack = vec![(a, b)];
        while let Some((a, b)) = stack.pop() {
            if a == b {
                continue;
            }
            match (table.get(a), table.get(b)) {
                (ShapeView::Array(x), ShapeView::Array(y)) => {
                    let mut sizes = x.dimensions().zip(y.dimensions());
                    let same = x.element_type == y.element_type && x.rank() == y.rank();
                    if !same || !sizes.all(|(x, y)| agree(x, y)) {
                        return false;
                    }
                }
                (ShapeView::Buffer(x), ShapeView::Buffer(y)) => stack.push((x, y)),
                (ShapeView::Tuple(x), ShapeView::Tuple(y)) if x.len() == y.len() => {
                    stack.extend(x.iter().copied().zip(y.iter().copied()));
                }
                _ => return false,
            }
        }
        true
    }

    fn attribute(&self, key: &str) -> Option<&'r Attribute<'r>> {
        self.request.attributes.iter().find(|attribute| attribute.key == key.as_bytes())
    }

    /// The value of attribute `key`, if present.
    pub fn value(&self, key: &str) -> Result<Option<AttributeValue<'r>>> {
        let Some(attribute) = self.attribute(key) else { return Ok(None) };
        decode(attribute.key, self.opcode(), attribute.value).map(Some).map_err(|error| {
            let span = error.span().shifted(attribute.at.start);
            ParseError::new(ErrorKind::InvalidAttribute, span, error.message())
        })
    }

    #[cold]
    fn wrong_kind(&self, key: &str) -> ParseError {
        self.invalid(key, format_args!("the value of {key} has the wrong kind"))
    }

    /// The integers of attribute `key`, if present.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        match self.value(key)? {
            None => Ok(None),
            Some(AttributeValue::Integers(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong_kind(key)),
        }
    }

    /// The integers of the required attribute `key`.
    pub fn demanded_integers(&self, key: &str) -> Result<Vec<i64>> {
        self.integers(key)?.ok_or_else(|| self.missing(format_args!("{key}=")))
    }

    /// The integers of attribute `key`; empty if it is absent.
    pub fn listed_integers(&self, key: &str) -> Result<Vec<i64>> {
        Ok(self.integers(key)?.unwrap_or_default())
    }

    /// The integer of attribute `key`, if present.
    pub fn integer(&self, key: &str) -> Result<Option<i64>> {
        match self.value(key)? {
            None => Ok(None),
            Some(AttributeValue::Integer(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong_kind(key)),
        }
    }

    /// The integer of the required attribute `key`.
    pub fn demanded_integer(&self, key: &str) -> Result<i64> {
        self.integer(key)?.ok_or_else(|| self.missing(format_args!("{key}=")))
    }

    /// The boolean attribute `key`; false if it is absent.
    pub fn flag(&self, key: &str) -> Result<bool> {
        match self.value(key)? {
            None => Ok(false),
            Some(AttributeValue::Boolean(value)) => Ok(value),
            Some(_) => Err(self.wrong_kind(key)),
        }
    }

    /// The word of attribute `key`, if present.
    pub fn word(&self, key: &str) -> Result<Option<&'r [u8]>> {
        match self.value(key)? {
            None => Ok(None),
            Some(AttributeValue::Word(word)) => Ok(Some(word)),
            Some(_) => Err(self.wrong_kind(key)),
        }
    }

    /// The window; empty if there is none.
    pub fn window(&self) -> Result<Vec<WindowDimension>> {
        match self.value("window")? {
            None => Ok(Vec::new()),
            Some(AttributeValue::Window(window)) => Ok(window),
            Some(_) => Err(self.wrong_kind("window")),
        }
    }

    /// `dimension` as an index below `rank`.
    pub fn index(&self, key: &str, dimension: i64, rank: usize) -> Result<usize> {
        match usize::try_from(dimension) {
            Ok(index) if index < rank => Ok(index),
            _ => Err(self.invalid(
                key,
                format_args!("dimension {dimension} of {key} is not one of {rank} dimensions"),
            )),
        }
    }

    /// The dimensions in `values` as distinct indices below `rank`.
    pub fn indices(&self, key: &str, values: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut seen = vec![false; rank];
        let mut indices = Vec::with_capacity(values.len());
        for value in values {
            let index = self.index(key, *value, rank)?;
            if std::mem::replace(&mut seen[index], true) {
                return Err(self.invalid(key, format_args!("{key} names dimension {value} twice")));
            }
            indices.push(index);
        }
        Ok(indices)
    }

    /// Parameter and result shapes of the computation called as `role`.
    pub fn callee(&self, role: CallRole) -> Result<Arc<Signature>> {
        let callee = self.request.callees.iter().find(|callee| callee.role == role);
        let Some(callee) = callee else {
            return Err(self.missing(format_args!("{}=", role.as_str())));
        };
        self.signature(callee)
    }

    pub fn signature(&self, callee: &Callee) -> Result<Arc<Signature>> {
        callee.signature.clone().ok_or_else(|| {
            self.missing(format_args!(
                "the computation of {}=, which is not defined before",
                callee.role.as_str()
            ))
        })
    }
}

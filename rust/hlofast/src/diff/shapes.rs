//! Differences between the shapes of partners.

use crate::ir::{ArrayShape, Layout, ShapeId, ShapeTable, ShapeView};
use std::collections::HashMap;

pub(super) const ELEMENT_TYPE: u8 = 1;
pub(super) const DIMENSIONS: u8 = 2;
pub(super) const LAYOUT: u8 = 4;
pub(super) const MEMORY_SPACE: u8 = 8;
pub(super) const STRUCTURE: u8 = 16;

/// The aspects, by name.
pub(super) const ASPECTS: [(u8, &str); 5] = [
    (ELEMENT_TYPE, "element_type"),
    (DIMENSIONS, "dimensions"),
    (LAYOUT, "layout"),
    (MEMORY_SPACE, "memory_space"),
    (STRUCTURE, "structure"),
];

/// Compares shapes of two modules, each pair once.
pub(super) struct ShapeComparison<'a> {
    tables: (&'a ShapeTable, &'a ShapeTable),
    /// By shape: a number that is equal for equal shapes.
    classes: (Vec<usize>, Vec<usize>),
    layouts: bool,
    known: HashMap<(ShapeId, ShapeId), u8>,
}

impl<'a> ShapeComparison<'a> {
    pub(super) fn new(
        tables: (&'a ShapeTable, &'a ShapeTable),
        classes: (Vec<usize>, Vec<usize>),
        layouts: bool,
    ) -> Self {
        Self { tables, classes, layouts, known: HashMap::new() }
    }

    /// The aspects in which any leaf differs, as bits.
    pub(super) fn differ(&mut self, a: ShapeId, b: ShapeId) -> u8 {
        if self.are_equal(a, b) {
            return 0;
        }
        // Tuples may be nested as deeply as the module is long.
        let mut stack = vec![(a, b)];
        while let Some(&(a, b)) = stack.last() {
            if self.known.contains_key(&(a, b)) || self.are_equal(a, b) {
                stack.pop();
                continue;
            }
            let parts: Vec<(ShapeId, ShapeId)> = match (self.tables.0.get(a), self.tables.1.get(b))
            {
                (ShapeView::Array(x), ShapeView::Array(y)) => {
                    self.known.insert((a, b), array_aspects(&x, &y, self.layouts));
                    continue;
                }
                (ShapeView::Buffer(x), ShapeView::Buffer(y)) => vec![(x, y)],
                (ShapeView::Tuple(x), ShapeView::Tuple(y)) if x.len() == y.len() => {
                    x.iter().copied().zip(y.iter().copied()).collect()
                }
                _ => {
                    self.known.insert((a, b), STRUCTURE);
                    continue;
                }
            };
            let before = stack.len();
            let mut bits = 0;
            for (x, y) in parts {
                match self.known.get(&(x, y)) {
                    Some(known) => bits |= known,
                    None if self.are_equal(x, y) => {}
                    None => stack.push((x, y)),
                }
            }
            if stack.len() == before {
                self.known.insert((a, b), bits);
            }
        }
        self.known.get(&(a, b)).copied().unwrap_or(0)
    }

    fn are_equal(&self, a: ShapeId, b: ShapeId) -> bool {
        let (of_a, of_b) = (self.classes.0.get(a.0 as usize), self.classes.1.get(b.0 as usize));
        of_a.is_some() && of_a == of_b
    }
}

fn array_aspects(a: &ArrayShape<'_>, b: &ArrayShape<'_>, layouts: bool) -> u8 {
    let mut bits = 0;
    if a.element_type != b.element_type {
        bits |= ELEMENT_TYPE;
    }
    if !a.dimensions().eq(b.dimensions()) {
        bits |= DIMENSIONS;
    }
    if layouts {
        let space = |layout: Option<&Layout>| layout.map_or(0, |layout| layout.memory_space);
        let rest = |layout: Option<&Layout>| {
            layout.map(|layout| Layout {
                memory_space: 0,
                had_level_types: false,
                ..layout.clone()
            })
        };
        if space(a.layout) != space(b.layout) {
            bits |= MEMORY_SPACE;
        }
        // Arrays of different rank have different layouts anyway.
        if a.rank() == b.rank() && rest(a.layout) != rest(b.layout) {
            bits |= LAYOUT;
        }
    }
    bits
}

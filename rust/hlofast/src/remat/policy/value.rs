//! What a row results in: a node, or a tuple of values.

use std::sync::Arc;

/// Limit on the depth of nested tuples.
const DEEPEST_TUPLE: u32 = 16;
/// Limit on the values that a row is taken to read.
pub const MOST_LEAVES: usize = 1 << 14;

/// What a row results in.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Nothing that is followed.
    #[default]
    Nothing,
    /// The value of a node.
    One(u32),
    /// A tuple of values.
    Many(Arc<Many>),
}

/// The elements of a tuple.
#[derive(Debug)]
pub struct Many {
    depth: u32,
    pub elements: Vec<Value>,
}

impl Value {
    /// A tuple of these elements, unless it is nested too deeply.
    pub fn many(elements: Vec<Value>) -> Value {
        let depth = |value: &Value| match value {
            Value::Many(many) => many.depth,
            _ => 0,
        };
        let depth = elements.iter().map(depth).max().unwrap_or(0) + 1;
        match depth <= DEEPEST_TUPLE {
            true => Value::Many(Arc::new(Many { depth, elements })),
            false => Value::Nothing,
        }
    }

    /// Element `index` of a tuple.
    pub fn element(&self, index: usize) -> Value {
        match self {
            Value::Many(many) => many.elements.get(index).cloned().unwrap_or_default(),
            _ => Value::Nothing,
        }
    }

    /// The node, if it is one.
    pub fn node(&self) -> Option<u32> {
        match self {
            Value::One(node) => Some(*node),
            _ => None,
        }
    }

    /// The part of the value at `path`, whose last step is applied first.
    pub fn at(&self, path: &[u32]) -> Value {
        path.iter().rev().fold(self.clone(), |value, index| value.element(*index as usize))
    }

    /// Appends the nodes of all parts, until there are too many. Tuples that share elements have far
    /// more parts than the text has words, so visits are counted too.
    pub fn leaves(&self, out: &mut Vec<u32>, visits: &mut usize) {
        *visits += 1;
        match self {
            Value::One(node) => out.push(*node),
            Value::Many(many) => {
                for value in &many.elements {
                    if *visits >= MOST_LEAVES {
                        return;
                    }
                    value.leaves(out, visits);
                }
            }
            Value::Nothing => {}
        }
    }
}

//! A graph without some of its nodes.

use super::{Graph, Node, Value};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Opcode, Row};
use hashbrown::HashMap;

/// A node that is read from a stack instead.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub node: u32,
    /// The element of the state that holds the stack; one for all nodes of the same value.
    pub element: u32,
    /// The row that computes the value where it is stacked; the slice has its bytes and its name.
    pub row: Row,
}

impl Graph {
    /// The nodes for which `is_kept` holds, and the `given` ones, which ascend: slices of elements of the state that no
    /// iteration changes. Those for which `is_early` holds, which read only such nodes, come first, as all that is
    /// read from stacks does. The results of single rows are left out. None if the body results in no tuple.
    pub fn without(&self, is_kept: &[bool], is_early: &[bool], given: &[Given]) -> Option<Graph> {
        let Value::Many(root) = &self.root else { return None };
        let mut graph = Graph { first_row: self.first_row, ..Graph::default() };
        graph.operands.offsets.push(0);
        // By old node: the new one. By element: its leaf, and the slice of it.
        let mut new: Vec<Option<u32>> = vec![None; self.nodes.len()];
        let mut slices: HashMap<u32, [u32; 2], BuildMix> = HashMap::default();
        let numbers = || 0..self.nodes.len() as u32;
        let (early, late): (Vec<u32>, Vec<u32>) =
            numbers().partition(|number| is_early[*number as usize]);
        for number in early.into_iter().chain(late) {
            let at = number as usize;
            let node = &self.nodes[at];
            if let Ok(own) = given.binary_search_by_key(&number, |own| own.node) {
                let Given { element, row, .. } = given[own];
                if let Some([_, slice]) = slices.get(&element) {
                    new[at] = Some(*slice);
                    continue;
                }
                let of = |opcode, element| Node {
                    row,
                    outer: row,
                    opcode,
                    shape: node.shape,
                    element,
                    whole: None,
                };
                let leaf = graph.append(of(Opcode::Parameter, Some(element)), &[]);
                let slice = graph.append(of(Opcode::DynamicSlice, None), &[leaf]);
                slices.insert(element, [leaf, slice]);
                new[at] = Some(slice);
            } else if is_kept[at] {
                let read: Vec<u32> =
                    self.operands(number).iter().filter_map(|own| new[*own as usize]).collect();
                let whole = node.whole.and_then(|own| new[own as usize]);
                new[at] = Some(graph.append(Node { whole, ..*node }, &read));
            }
        }
        let of = |node: &u32| new.get(*node as usize).copied().flatten();
        let mut elements: Vec<Value> =
            root.elements.iter().map(|own| renumbered(own, &new)).collect();
        for (element, [leaf, _]) in &slices {
            let count = elements.len().max(*element as usize + 1);
            elements.resize(count, Value::Nothing);
            elements[*element as usize] = Value::One(*leaf);
        }
        graph.root = Value::many(elements);
        graph.results = vec![Value::Nothing; self.results.len()];
        let values = |own: &Vec<Value>| own.iter().map(|own| renumbered(own, &new)).collect();
        let nodes = |own: &Vec<u32>| own.iter().filter_map(of).collect();
        graph.wider = moved(&self.wider, of, i64::clone);
        graph.own_bytes = moved(&self.own_bytes, of, i64::clone);
        graph.further = moved(&self.further, of, Vec::clone);
        graph.copies = moved(&self.copies, of, Vec::clone);
        graph.states = moved(&self.states, of, values);
        graph.shared = self.shared.iter().filter_map(of).collect();
        graph.on_host = self.on_host.iter().filter_map(of).collect();
        graph.written = moved(&self.written, of, Row::clone);
        graph.indices = moved(&self.indices, of, u32::clone);
        graph.within = moved(&self.within, of, Row::clone);
        graph.combined = moved(&self.combined, of, nodes);
        graph.passing = moved(&self.passing, of, ComputationId::clone);
        graph.kept = moved(&self.kept, of, i64::clone);
        graph.find_users();
        Some(graph)
    }

    fn append(&mut self, node: Node, read: &[u32]) -> u32 {
        self.nodes.push(node);
        self.operands.items.extend_from_slice(read);
        self.operands.offsets.push(self.operands.items.len() as u32);
        self.nodes.len() as u32 - 1
    }
}

/// What is known of nodes, by their new numbers.
fn moved<T>(
    known: &HashMap<u32, T, BuildMix>,
    of: impl Fn(&u32) -> Option<u32>,
    renumber: impl Fn(&T) -> T,
) -> HashMap<u32, T, BuildMix> {
    known.iter().filter_map(|(node, own)| Some((of(node)?, renumber(own)))).collect()
}

/// A value with the new number of its node; a tuple in a tuple is followed no further.
fn renumbered(value: &Value, new: &[Option<u32>]) -> Value {
    let node = value.node().and_then(|own| new.get(own as usize).copied().flatten());
    node.map_or(Value::Nothing, Value::One)
}

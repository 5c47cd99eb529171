//! What the loops that a computation runs are to its graph.

use super::super::inner;
use super::super::value::MOST_LEAVES;
use super::{Builder, DEEPEST, Graph, Value};
use crate::ir::{CallRole, ComputationId, Opcode, Row, ShapeId};
use hashbrown::HashMap;

impl Builder<'_, '_> {
    /// The results of a loop: what it hands through stays what it was; an element that the body
    /// makes from products is a product.
    pub(super) fn results_of_loop(
        &mut self,
        row: Row,
        outer: Option<Row>,
        state: &Value,
        depth: u32,
    ) -> Option<Value> {
        let module = self.module;
        let body = module.called(row, CallRole::Body);
        let elements = module.shapes().tuple(module.shape(row));
        let is_closed = self.closed.binary_search(&row).is_ok();
        let (Some(body), Some(elements), false) =
            (body.filter(|_| depth < DEEPEST), elements, is_closed)
        else {
            let value = self.opaque(row, outer, Opcode::While, std::slice::from_ref(state));
            if let (true, Some(node), Value::Many(many)) = (is_closed, value.node(), state) {
                let known: Vec<Value> = many.elements.iter().take(MOST_LEAVES).cloned().collect();
                *self.budget = self.budget.checked_sub(known.len())?;
                self.graph.states.insert(node, known);
            }
            return Some(value);
        };
        let mut inner = Builder {
            module,
            graph: Graph::default(),
            known: HashMap::default(),
            elements: HashMap::default(),
            budget: self.budget,
            closed: self.closed,
            opens: self.opens,
            key: Vec::new(),
        };
        let root = inner.open(body, None, None, depth + 1, None)?;
        let mut inner = inner.graph;
        inner.find_users();
        if self.opens && inner::is_of_program(module, row, &inner) {
            inner.root = root;
            return self.results_of_program(row, outer, (state, elements), (body, &inner));
        }
        let mut results = Vec::with_capacity(elements.len());
        // By node: the number of the last element, plus one, for which it was visited.
        let mut visited = vec![0usize; inner.nodes.len()];
        for (index, shape) in elements.iter().enumerate() {
            let Some(made) = root.element(index).node() else {
                results.push(Value::Nothing);
                continue;
            };
            if inner.nodes[made as usize].element == u32::try_from(index).ok() {
                results.push(state.element(index));
                continue;
            }
            let mut products: Vec<Row> = Vec::new();
            let mut read = Vec::new();
            let mut stack = vec![made];
            while let Some(at) = stack.pop() {
                if std::mem::replace(&mut visited[at as usize], index + 1) == index + 1 {
                    continue;
                }
                let node = &inner.nodes[at as usize];
                if let Some(element) = node.element {
                    state.element(element as usize).leaves(&mut read, &mut 0);
                } else if node.opcode.is_matmul() {
                    products.push(node.row);
                }
                *self.budget = self.budget.checked_sub(1)?;
                stack.extend(inner.operands(at));
            }
            read.sort_unstable();
            read.dedup();
            products.sort_unstable();
            let (first, opcode) = match products.first() {
                Some(first) => (*first, Opcode::Convolution),
                None => (row, Opcode::While),
            };
            let node = self.push(first, outer.unwrap_or(row), opcode, *shape, &read);
            if products.len() > 1 {
                self.graph.further.insert(node, products.split_off(1));
            }
            results.push(Value::One(node));
        }
        Some(Value::many(results))
    }

    /// The results of a loop of the program, with this body.
    fn results_of_program(
        &mut self,
        row: Row,
        outer: Option<Row>,
        (state, elements): (&Value, &[ShapeId]),
        (id, body): (ComputationId, &Graph),
    ) -> Option<Value> {
        let opened = inner::open(self.module, body, elements.len(), self.budget)?;
        let outer = outer.unwrap_or(row);
        let first = self.graph.nodes.len() as u32;
        let mut products: Vec<Option<u32>> = vec![None; opened.products.len()];
        let mut results = vec![Value::Nothing; elements.len()];
        // The element that stacks a product stands for it.
        let mut stacks: Vec<Option<usize>> = vec![None; opened.products.len()];
        for (index, made) in opened.results.iter().enumerate() {
            if let Some(product) = made.as_ref().and_then(|made| made.product) {
                stacks[product as usize].get_or_insert(index);
            }
        }
        for (number, own) in opened.products.iter().enumerate() {
            let Some(made_by) = own.rows.first() else { continue };
            let read = inner::nodes_read(&own.read, state, &products);
            *self.budget = self.budget.checked_sub(read.len())?;
            let (shape, opcode) = match stacks[number] {
                Some(index) => (elements[index], Opcode::Convolution),
                None => (own.shape, Opcode::Dot),
            };
            let node = self.push(*made_by, outer, opcode, shape, &read);
            if own.rows.len() > 1 {
                self.graph.further.insert(node, own.rows[1..].to_vec());
            }
            match stacks[number] {
                Some(index) => results[index] = Value::One(node),
                None => {
                    self.graph.own_bytes.insert(node, 0);
                    let place = body.passing.get(&own.node).copied().unwrap_or(id);
                    self.graph.passing.insert(node, place);
                }
            }
            products[number] = Some(node);
        }
        for (index, shape) in elements.iter().enumerate() {
            if results[index].node().is_some() {
                continue;
            }
            results[index] = match &opened.results[index] {
                Some(made) => {
                    let read = inner::nodes_read(&made.read, state, &products);
                    *self.budget = self.budget.checked_sub(read.len())?;
                    let node = self.push(row, outer, Opcode::While, *shape, &read);
                    self.graph.indices.insert(node, index as u32);
                    Value::One(node)
                }
                None if body.root.element(index).node().is_some() => state.element(index),
                None => Value::Nothing,
            };
        }
        let last = self.graph.nodes.len() as u32;
        self.graph.within.extend((first..last).map(|node| (node, row)));
        Some(Value::many(results))
    }
}

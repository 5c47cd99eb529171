//! The table of matrix products and convolutions.

use crate::column::Column;
use crate::held::Held;
use crate::text_column::TextColumn;
use hlofast::cost::matmul::{Contraction, contraction};
use hlofast::graph::Phase;
use hlofast::ir::{ElementType, Row};
use pyo3::prelude::*;
use pyo3::types::PyList;

type Texts = Vec<Box<[u8]>>;

/// The executions of an instruction in one phase.
pub struct Fact {
    /// How many; -1 beyond 64 bits.
    pub multiplicity: i64,
    /// Whether there may be more: inside loops of unknown trip count, or beyond 64 bits.
    pub is_lower_bound: bool,
    /// The phase.
    pub phase: Phase,
    /// The first of its scopes.
    pub scope: Vec<u8>,
}

/// Name and column of every fact, one row per contraction and phase it is executed in, in row
/// order. `facts` gives for each phase of a row how often it is executed, and a scope.
pub fn matmuls<'py>(
    py: Python<'py>,
    held: &Held,
    facts: impl Fn(Row) -> Vec<Fact> + Sync,
) -> PyResult<Bound<'py, PyList>> {
    let core = &*held.core;
    let (found, facts) = py.detach(|| {
        let mut rows: (Vec<(Row, Contraction)>, Vec<Fact>) = (Vec::new(), Vec::new());
        for row in core.rows() {
            let Some(contraction) = contraction(core, row) else { continue };
            for fact in facts(row) {
                rows.0.push((row, contraction));
                rows.1.push(fact);
            }
        }
        rows
    });
    let metadata = py.detach(|| core.metadata_columns());
    let list = PyList::empty(py);
    let number = |name: &str, values: Vec<i64>| -> PyResult<()> {
        list.append((name, Bound::new(py, Column::of(values))?))
    };
    let texts = |name: &str, values: Texts| -> PyResult<()> {
        list.append((name, Bound::new(py, TextColumn::new_from(values, None))?))
    };
    let sizes = |name: &str, of: fn(&Contraction) -> u64| {
        let values = found.iter().map(|(_, c)| i64::try_from(of(c)).unwrap_or(i64::MAX));
        number(name, values.collect())
    };
    let types = |name: &str, of: fn(&Contraction) -> ElementType| {
        texts(name, found.iter().map(|(_, c)| of(c).as_str().as_bytes().into()).collect())
    };
    let rows: Vec<u32> = found.iter().map(|(row, _)| row.0).collect();
    list.append(("instruction", Bound::new(py, Column::of(rows))?))?;
    texts("name", found.iter().map(|(row, _)| core.instruction_name(*row).into()).collect())?;
    texts("kind", found.iter().map(|(_, c)| c.kind.as_str().as_bytes().into()).collect())?;
    sizes("batch", |c| c.batch)?;
    sizes("m", |c| c.m)?;
    sizes("n", |c| c.n)?;
    sizes("k", |c| c.k)?;
    types("lhs_dtype", |c| c.lhs_type)?;
    types("rhs_dtype", |c| c.rhs_type)?;
    types("output_dtype", |c| c.output_type)?;
    types("accumulation_dtype", |c| c.accumulation_type)?;
    number("multiplicity", facts.iter().map(|fact| fact.multiplicity).collect())?;
    let is_lower = facts.iter().map(|fact| u8::from(fact.is_lower_bound));
    list.append(("is_lower_bound", Bound::new(py, Column::of::<u8>(is_lower.collect()))?))?;
    number("flops_once", found.iter().map(|(_, c)| c.flops).collect())?;
    let total = found
        .iter()
        .zip(&facts)
        .map(|((_, c), fact)| c.flops.saturating_mul(fact.multiplicity.max(0)));
    number("flops", total.collect())?;
    texts("phase", facts.iter().map(|fact| fact.phase.as_str().as_bytes().into()).collect())?;
    texts("scope", facts.into_iter().map(|fact| fact.scope.into()).collect())?;
    let file = |row: &Row| {
        let id = usize::try_from(metadata.source_file[row.0 as usize]).ok();
        id.and_then(|id| metadata.source_files.get(id).cloned()).unwrap_or_default()
    };
    texts("source_file", found.iter().map(|(row, _)| file(row)).collect())?;
    let line = |row: &Row| i64::from(metadata.source_line[row.0 as usize]);
    number("source_line", found.iter().map(|(row, _)| line(row)).collect())?;
    let known = found.iter().map(|(_, c)| c.provenance.as_str().as_bytes().into());
    texts("provenance", known.collect())?;
    Ok(list)
}

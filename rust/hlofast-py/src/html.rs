//! HTML for notebooks: small tables with all text escaped.

use crate::held::Held;
use hlofast::ir::{ComputationId, Row};
use std::fmt::Write;

const SHOWN: usize = 30;

/// `bytes` as HTML text.
pub fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A table with a heading row. This function escapes the cells.
pub fn table(caption: &str, heads: &[&str], rows: impl Iterator<Item = Vec<Vec<u8>>>) -> String {
    let mut html = String::from("<table>");
    let _ = write!(html, "<caption>{}</caption><tr>", escape(caption.as_bytes()));
    for head in heads {
        let _ = write!(html, "<th>{}</th>", escape(head.as_bytes()));
    }
    html.push_str("</tr>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escape(&cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
    html
}

fn caption(shown: usize, all: usize, noun: &str) -> String {
    match all {
        all if all > shown => format!("first {shown} of {all} {noun}"),
        all => format!("{all} {noun}"),
    }
}

/// A table of instructions, one per row.
pub fn instruction_table(held: &Held, rows: &[u32]) -> String {
    let core = &held.core;
    let shown = rows.len().min(SHOWN);
    let lines = rows[..shown].iter().map(|row| {
        let row = Row(*row);
        let operands = core.operands(row).iter().take(8);
        let operands: Vec<&[u8]> =
            operands.map(|operand| core.instruction_name(Row(*operand))).collect();
        vec![
            row.0.to_string().into_bytes(),
            core.instruction_name(row).to_vec(),
            crate::instruction::opcode_bytes(core, row).to_vec(),
            crate::shape::shape_text(held, core.shape(row), 80).into_bytes(),
            operands.join(&b", "[..]),
        ]
    });
    let heads = ["row", "name", "opcode", "shape", "operands"];
    table(&caption(shown, rows.len(), "instructions"), &heads, lines)
}

/// A table of computations, one per row.
pub fn computation_table(held: &Held, ids: &[u32]) -> String {
    let core = &held.core;
    let shown = ids.len().min(SHOWN);
    let lines = ids[..shown].iter().map(|id| {
        let id = ComputationId(*id);
        let root = Row(core.computation(id).root);
        vec![
            core.computation_name(id).to_vec(),
            core.computation(id).rows().len().to_string().into_bytes(),
            core.instruction_name(root).to_vec(),
        ]
    });
    table(&caption(shown, ids.len(), "computations"), &["name", "instructions", "root"], lines)
}

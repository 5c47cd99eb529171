//! What holds of every module, whatever its text.

use hlofast::ir::{Attribute, Attributes, ComputationId, Flags, Module, Opcode, Row, ShapeView};
use hlofast::text::is_identifier_byte;

/// Fails unless `module` is as every analysis takes it to be.
pub fn check_invariants(module: &Module) {
    check_columns(module);
    check_computations(module);
    check_operands(module);
    check_calls(module);
    check_names_and_tails(module);
    check_marked_attributes(module);
    check_shapes(module);
    check_users(module);
}

fn check_columns(module: &Module) {
    let columns = module.columns();
    let rows = columns.len();
    assert_eq!(rows, columns.flags.len());
    assert_eq!(rows, columns.shapes.len());
    assert_eq!(rows, columns.name_starts.len());
    assert_eq!(rows, columns.name_lengths.len());
    assert_eq!(rows, columns.tail_starts.len());
    assert_eq!(rows, columns.tail_ends.len());
    assert_eq!(rows + 1, columns.value_offsets.len());
    assert!(columns.value_offsets.is_sorted(), "offsets of attribute values go back");
    assert_eq!(columns.value_offsets.last().copied(), Some(columns.value_ends.len() as u32));
    assert_eq!(rows + 1, columns.operand_offsets.len());
    assert_eq!(columns.operand_offsets.first(), Some(&0));
    assert!(columns.operand_offsets.is_sorted(), "operand offsets go back");
    assert_eq!(columns.operand_offsets.last().copied(), Some(columns.operands.len() as u32));
}

/// Attributes found where reading left marks are those that the text says.
fn check_marked_attributes(module: &Module) {
    for row in module.rows() {
        let found: Vec<Attribute> = module.attributes(row).collect();
        if module.flags(row) & Flags::SUGAR == 0 {
            let written: Vec<Attribute> = Attributes::of_text(module, module.tail(row)).collect();
            assert_eq!(found, written, "attributes of row {}", row.0);
        }
        for attribute in &found {
            let key = module.bytes(attribute.key);
            let first = found.iter().find(|other| module.bytes(other.key) == key);
            let Ok(key) = std::str::from_utf8(key) else { continue };
            assert_eq!(module.attribute(row, key), first.map(|first| first.value), "{key}");
        }
    }
}

fn check_computations(module: &Module) {
    let mut next = 0;
    let mut entries = 0;
    for (index, computation) in module.computations().iter().enumerate() {
        assert_eq!(computation.first_row, next, "rows before computation {index} are nobody's");
        assert!(computation.first_row < computation.end_row, "computation {index} is empty");
        next = computation.end_row;
        let rows = computation.rows();
        assert!(rows.contains(&computation.root), "the root of {index} is elsewhere");
        for row in rows {
            let flags = module.flags(Row(row));
            let is_root = flags & Flags::ROOT != 0;
            assert_eq!(is_root, row == computation.root, "root flag of row {row}");
            if flags & Flags::MARKED_ROOT != 0 {
                assert_eq!(row, computation.root, "marked root of {index}");
            }
            assert_eq!(module.computation_of(Row(row)), ComputationId(index as u32));
        }
        entries += usize::from(computation.is_marked_entry);
        let length = module.text().len();
        for span in [computation.header, computation.signature, computation.body] {
            assert!(span.start <= span.end && span.end as usize <= length, "spans of {index}");
        }
        assert!(!module.bytes(computation.name).is_empty(), "computation {index} has no name");
    }
    assert_eq!(next as usize, module.row_count(), "rows after the last computation");
    assert_eq!(module.computation_column().len(), module.row_count());
    assert!(entries <= 1, "several entries");
    assert!((module.entry().0 as usize) < module.computations().len());
    if entries == 1 {
        assert!(module.computation(module.entry()).is_marked_entry);
    }
}

/// Operands are of the same computation, and following them never comes back.
fn check_operands(module: &Module) {
    for computation in module.computations() {
        let rows = computation.rows();
        let mut left: Vec<u32> = Vec::new();
        for row in rows.clone() {
            let operands = module.operands(Row(row));
            for operand in operands {
                assert!(rows.contains(operand), "row {row} uses row {operand}");
                assert_ne!(*operand, row, "row {row} uses itself");
            }
            left.push(operands.len() as u32);
        }
        // Take away rows without operands until none is left.
        let mut users = vec![Vec::new(); rows.len()];
        for row in rows.clone() {
            for operand in module.operands(Row(row)) {
                users[(operand - rows.start) as usize].push(row - rows.start);
            }
        }
        let mut ready: Vec<u32> =
            (0..left.len() as u32).filter(|row| left[*row as usize] == 0).collect();
        let mut taken = 0;
        while let Some(row) = ready.pop() {
            taken += 1;
            for user in &users[row as usize] {
                left[*user as usize] -= 1;
                if left[*user as usize] == 0 {
                    ready.push(*user);
                }
            }
        }
        assert_eq!(taken, rows.len(), "a cycle of operands");
    }
    let pairs = module.control_predecessors();
    assert!(pairs.is_sorted_by_key(|(row, _)| *row), "control predecessors are not sorted");
    for (row, predecessor) in pairs {
        assert_eq!(module.computation_of(*row), module.computation_of(*predecessor));
    }
}

/// Calls are sorted and lead to computations, never in a circle.
fn check_calls(module: &Module) {
    let calls = module.all_calls();
    assert!(calls.is_sorted_by_key(|call| call.row), "calls are not sorted");
    let count = module.computations().len();
    let mut left = vec![0u32; count];
    let mut callees = vec![Vec::new(); count];
    for call in calls {
        assert!((call.row.0 as usize) < module.row_count());
        assert!((call.computation.0 as usize) < count, "a call to nothing");
        let caller = module.computation_of(call.row).0 as usize;
        callees[caller].push(call.computation.0);
        left[call.computation.0 as usize] += 1;
        assert!(module.calls(call.row).contains(call));
    }
    for (id, callees) in (0..).map(ComputationId).zip(&callees) {
        let within = &calls[module.calls_within(id)];
        assert!(within.iter().map(|call| call.computation.0).eq(callees.iter().copied()));
    }
    let mut ready: Vec<u32> = (0..count as u32).filter(|id| left[*id as usize] == 0).collect();
    let mut taken = 0;
    while let Some(id) = ready.pop() {
        taken += 1;
        for callee in &callees[id as usize] {
            left[*callee as usize] -= 1;
            if left[*callee as usize] == 0 {
                ready.push(*callee);
            }
        }
    }
    assert_eq!(taken, count, "a cycle of calls");
}

/// Names and tails lie in the module's bytes; names are what the lookup finds.
fn check_names_and_tails(module: &Module) {
    for (index, computation) in module.computations().iter().enumerate() {
        let mut names: Vec<(&[u8], u32)> = Vec::with_capacity(computation.rows().len());
        for row in computation.rows().map(Row) {
            let span = module.name_span(row);
            let name = module.bytes(span);
            assert_eq!(name.len(), span.len(), "the name of {row:?} is beyond the bytes");
            assert!(!name.is_empty(), "{row:?} has no name");
            let tail = module.tail(row);
            assert!(tail.start <= tail.end, "the tail of {row:?} goes back");
            assert_eq!(module.bytes(tail).len(), tail.len(), "the tail of {row:?}");
            assert!(span.end <= tail.start, "the name of {row:?} is after its tail");
            if !module.is_implicit(row) {
                assert!(name.iter().all(|byte| is_identifier_byte(*byte)), "name of {row:?}");
                assert!(tail.end as usize <= module.text().len());
                names.push((name, row.0));
            }
            check_attributes(module, row);
        }
        names.sort_unstable();
        for pair in names.windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "rows of computation {index} share a name");
        }
    }
    for error in module.errors() {
        assert!(error.span().end as usize <= module.text().len(), "{error:?}");
    }
}

/// What stands between attributes is a comma, an equals sign, whitespace or a comment.
fn check_attributes(module: &Module, row: Row) {
    let tail = module.tail(row);
    let is_sugar = module.flags(row) & Flags::SUGAR != 0;
    let mut at = tail.start;
    for attribute in module.attributes(row) {
        assert!(at <= attribute.key.start, "attributes of {row:?} overlap");
        assert!(
            attribute.key.start < attribute.key.end && attribute.key.end < attribute.value.start
        );
        assert!(attribute.value.end <= tail.end, "an attribute of {row:?} leaves its tail");
        if !is_sugar {
            check_gap(module, at, attribute.key.start, b",");
        }
        check_gap(module, attribute.key.end, attribute.value.start, b"=");
        at = attribute.value.end;
    }
    if !is_sugar {
        check_gap(module, at, tail.end, b"");
    }
}

fn check_gap(module: &Module, start: u32, end: u32, tokens: &[u8]) {
    let text = module.bytes(hlofast::text::Span { start, end });
    if text == tokens || text == b", " {
        return;
    }
    let mut cursor = hlofast::text::Cursor::new(text);
    let mut seen = Vec::new();
    loop {
        cursor.skip_space().expect("a comment between attributes is closed");
        if cursor.is_at_end() {
            break;
        }
        seen.push(cursor.peek());
        cursor.advance(1);
    }
    assert_eq!(
        String::from_utf8_lossy(&seen),
        String::from_utf8_lossy(tokens),
        "between attributes: {:?}",
        String::from_utf8_lossy(text)
    );
}

fn check_shapes(module: &Module) {
    let shapes = module.shapes();
    for id in shapes.ids() {
        let children = match shapes.get(id) {
            ShapeView::Array(_) => &[][..],
            ShapeView::Tuple(children) => children,
            ShapeView::Buffer(inner) => {
                assert!(inner < id);
                assert!(shapes.array(inner).is_some(), "a buffer holds an array");
                &[]
            }
        };
        assert!(children.iter().all(|child| *child < id), "a child of {id:?} comes after it");
        let leaves: u64 = match shapes.get(id) {
            ShapeView::Tuple(children) => {
                children.iter().map(|child| u64::from(shapes.leaf_count(*child))).sum()
            }
            _ => 1,
        };
        assert_eq!(u64::from(shapes.leaf_count(id)), leaves.min(u64::from(u32::MAX)));
        let text = shapes.text(id);
        assert!(text.end as usize <= module.text().len());
    }
    for shape in &module.columns().shapes {
        assert!((shape.0 as usize) < shapes.len());
    }
    let offsets = module.leaf_offsets();
    assert_eq!(offsets.len(), module.row_count() + 1);
    assert!(offsets.is_sorted());
    assert_eq!(module.shape_bytes_column().len(), module.row_count());
}

fn check_users(module: &Module) {
    let users = module.users();
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for row in module.rows() {
        pairs.extend(module.operands(row).iter().map(|operand| (*operand, row.0)));
        if module.opcode(row) == Opcode::Parameter {
            assert!(module.operands(row).is_empty());
            let is_numbered = module.parameter_number(row).is_some();
            assert!(is_numbered || module.is_placeholder(row), "the number of {row:?} is lost");
        }
        let (opcode, _) = module.opcode_and_payload(row);
        assert!(!opcode.is_empty(), "the opcode of {row:?} cannot be found again");
        let word = module.bytes(opcode);
        if module.opcode(row) != Opcode::Unknown && module.flags(row) & Flags::SUGAR == 0 {
            assert_eq!(Opcode::from_bytes(word), Some(module.opcode(row)), "opcode of {row:?}");
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let transposed: Vec<(u32, u32)> = module
        .rows()
        .flat_map(|row| users.get(row.0).iter().map(move |user| (row.0, *user)))
        .collect();
    assert_eq!(pairs, transposed, "users are not the transpose of operands");
}

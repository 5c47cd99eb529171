//! `Module.to_proto`: modules as protobufs.

use crate::errors::to_python;
use crate::held::Held;
use crate::module::Module;
use hlofast::proto::{self, Written};
use hlofast::{ErrorKind, ParseError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn write(py: Python<'_>, held: &Held) -> PyResult<Written> {
    let written = py.detach(|| proto::from_module(&held.core));
    written.map_err(|error| to_python(held.core.source(), &error))
}

fn bytes<'py>(py: Python<'py>, module: Vec<u8>, wrapped: bool) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &if wrapped { proto::wrapped(&module) } else { module })
}

/// The module as an `HloModuleProto`, or as an `HloProto` around it. With `strict`, raises
/// `ParseError` if anything in the text cannot be represented.
pub fn to_proto<'py>(
    py: Python<'py>,
    held: &Held,
    wrapped: bool,
    strict: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let written = write(py, held)?;
    if let Some((span, what)) = written.left_out.first().filter(|_| strict) {
        let message = format!("a protobuf has no place for {what}");
        let error = ParseError::new(ErrorKind::UnexpectedAttribute, *span, message);
        return Err(to_python(held.core.source(), &error));
    }
    Ok(bytes(py, written.bytes, wrapped))
}

/// A protobuf, and line and description of everything it cannot represent.
type WithLosses<'py> = (Bound<'py, PyBytes>, Vec<(u64, String)>);

/// Returns the bytes of a protobuf, and line and description of everything it cannot represent.
#[pyfunction]
pub fn _proto<'py>(
    py: Python<'py>,
    module: &Bound<'py, Module>,
    wrapped: bool,
) -> PyResult<WithLosses<'py>> {
    let held = &module.get().held;
    let Written { bytes: written, left_out } = write(py, held)?;
    let line = |start: u32| held.line_of(py, start as usize);
    let left_out = left_out.into_iter().map(|(span, what)| (line(span.start), what)).collect();
    Ok((bytes(py, written, wrapped), left_out))
}

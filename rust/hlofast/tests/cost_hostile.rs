//! Costs of hostile texts: bounded work, and sums that report overflow.

use hlofast::cost::{Cost, Options, operand_sums};
use hlofast::ir::Module;
use hlofast::text::Source;
use hlofast::{Analyses, Context};
use std::fmt::Write;

fn read(text: &str) -> Module {
    let source = Source::from_slice(text.as_bytes());
    hlofast::parse(source, &hlofast::Options::default()).unwrap()
}

fn both(text: &str) -> (Cost, Cost) {
    let module = read(text);
    let count = |is_xla| {
        let cost = Options { is_xla, is_float32: is_xla, ..Options::default() };
        let analyses = Analyses::with(&module, Context { cost, ..Context::default() });
        // The result may be None, but the call must end.
        let options = &analyses.context().cost;
        let sums = operand_sums(&module, analyses.facts(), options).unwrap_or_default();
        assert!(sums.iter().all(|(_, sum)| *sum != 0.0));
        analyses.cost().clone()
    };
    (count(false), count(true))
}

#[test]
fn calls_that_double() {
    let mut text = String::from("HloModule m\n\n");
    text += "f0 {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] add(p, p)\n}\n\n";
    for level in 1..=200 {
        let below = level - 1;
        let _ = write!(
            text,
            "f{level} {{\n  p = f32[8] parameter(0)\n  a = f32[8] call(p), to_apply=f{below}\n  \
             ROOT r = f32[8] call(a), to_apply=f{below}\n}}\n\n"
        );
    }
    text += "ENTRY e {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] call(p), to_apply=f200\n}\n";
    let (executed, xla) = both(&text);
    // 2^200 executions exceed every column and must not be truncated.
    assert_eq!(executed.executions[0], None);
    assert_eq!(executed.executions[199], Some(2));
    assert_eq!(executed.totals.flops, i128::MAX);
    assert_eq!(xla.totals.flops, i128::MAX);
    assert_eq!(executed.computations[40].flops, 8 << 40);
}

#[test]
fn loops_in_loops() {
    let mut text = String::from("HloModule m\n\n");
    text += "c {\n  p = f32[2] parameter(0)\n  ROOT r = pred[] constant(true)\n}\n\n";
    text += "b0 {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] negate(p)\n}\n\n";
    let config = "backend_config={\"known_trip_count\":{\"n\":\"1000000000000000000\"}}";
    for level in 1..=4 {
        let _ = write!(
            text,
            "b{level} {{\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] while(p), condition=c, \
             body=b{}, {config}\n}}\n\n",
            level - 1
        );
    }
    text += "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] call(p), to_apply=b4\n}\n";
    let (executed, xla) = both(&text);
    let million_million_million = 10i128.pow(18);
    assert_eq!(executed.computations[2].flops, 2 * million_million_million);
    assert_eq!(executed.computations[3].flops, 2 * million_million_million.pow(2));
    assert_eq!(executed.executions[1], None);
    assert_eq!(xla.totals.flops, 2);
}

#[test]
fn numbers_at_the_limits() {
    let limit = i64::MAX;
    let text = format!(
        "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
         ROOT r = f32[] add(a, b)\n}}\n\nENTRY e {{\n  p = f32[{limit}] parameter(0)\n  \
         q = f32[{limit},{limit}] parameter(1)\n  z = f32[] constant(0)\n  \
         d = f32[{limit},{limit}] dot(q, q), lhs_contracting_dims={{1}}, \
         rhs_contracting_dims={{0}}\n  \
         w = f32[{limit}] reduce-window(p, z), window={{size={limit} pad={limit}_{limit}}}, \
         to_apply=add\n  f = c64[{limit}] fft(p), fft_type=FFT, fft_length={{{limit}}}\n  \
         s = f32[{limit}] sort(p), dimensions={{0}}, to_apply=add\n  \
         t = f32[{limit},{limit}] triangular-solve(q, q)\n  c = f32[{limit},{limit}] cholesky(q)\n  \
         g = f32[{limit}] gather(p, p), slice_sizes={{{limit}}}\n  \
         ROOT a = f32[{limit}] add(p, w)\n}}\n"
    );
    let (executed, xla) = both(&text);
    // A value that does not fit its column is marked, not wrapped.
    assert!(executed.provenance.contains(&hlofast::Provenance::Unknown));
    assert!(executed.flops.iter().all(|flops| *flops >= 0));
    assert!(executed.totals.flops >= i128::from(limit));
    assert!(xla.totals.flops >= i128::from(limit));
}

#[test]
fn operands_through_many_fusions() {
    // Every level passes two parameters to the level below, twice.
    let mut text = String::from("HloModule m\n\n");
    text += "f0 {\n  a = f32[8] parameter(0)\n  b = f32[8] parameter(1)\n  \
             ROOT r = f32[8] add(b, a)\n}\n\n";
    for level in 1..=60 {
        let _ = write!(
            text,
            "f{level} {{\n  a = f32[8] parameter(0)\n  b = f32[8] parameter(1)\n  \
             x = f32[8] fusion(a, b), kind=kLoop, calls=f{0}\n  \
             y = f32[8] fusion(b, a), kind=kLoop, calls=f{0}\n  \
             ROOT r = f32[8] multiply(x, y)\n}}\n\n",
            level - 1
        );
    }
    text += "ENTRY e {\n  p = f32[8] parameter(0)\n  \
             ROOT r = f32[8] fusion(p, p), kind=kLoop, calls=f60\n}\n";
    let (executed, _) = both(&text);
    assert_eq!(executed.totals.bytes_written, 32);
    assert_eq!(executed.totals.bytes_read, 64);
}

//! Trip counts of random loops, compared with stepping them.

use crate::support::loops::Loop;
use proptest::prelude::*;

/// Steps the loop with wrap-around arithmetic; None if it does not end soon or wraps.
fn stepped(
    bits: u32,
    signed: bool,
    init: i128,
    bound: i128,
    step: i128,
    direction: &str,
) -> Option<u64> {
    let (low, high) = if signed {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    let mut i = init;
    for count in 0..5000 {
        let goes_on = match direction {
            "LT" => i < bound,
            "LE" => i <= bound,
            "GT" => i > bound,
            "GE" => i >= bound,
            "EQ" => i == bound,
            _ => i != bound,
        };
        if !goes_on {
            return Some(count);
        }
        i += step;
        if i < low || i > high {
            return None;
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn equals_stepping(
        (bits, signed, init, bound) in (prop_oneof![Just(4u32), Just(8)], any::<bool>()).prop_flat_map(|(bits, signed)| {
            let span = 1i64 << bits;
            let low = if signed { -span / 2 } else { 0 };
            (Just(bits), Just(signed), low..low + span, low..low + span)
        }),
        step in -7i64..8,
        direction in prop_oneof![Just("LT"), Just("LE"), Just("GT"), Just("GE"), Just("EQ"), Just("NE")],
        subtract in any::<bool>(),
    ) {
        let (init, bound, step) = (i128::from(init), i128::from(bound), i128::from(step));
        let ty = format!("{}{bits}", if signed { "s" } else { "u" });
        let condition = format!("ROOT c = pred[] compare(i, n), direction={direction}");
        // An unsigned constant stands for a negative step by wrapping around.
        let written = if subtract { -step } else { step };
        let written = if signed { written } else { written.rem_euclid(1 << bits) };
        let opcode = if subtract { "subtract" } else { "add" };
        let body = format!("s = T[] constant({written})\n next = T[] {opcode}(i, s)");
        let case = Loop { ty: &ty, condition: &condition, body: &body, init, bound, ..Loop::default() };
        prop_assert_eq!(case.count(), stepped(bits, signed, init, bound, step, direction));
    }

    /// Chains of arithmetic and conversions, compared with wrap-around stepping: exact results are
    /// exact.
    #[test]
    fn never_differs_from_a_machine(
        base in 0usize..4,
        init in 0i128..256,
        body in prop::collection::vec(operation(), 0..4),
        condition in prop::collection::vec(operation(), 0..4),
        bound in 0i128..256,
        direction in prop_oneof![Just("LT"), Just("LE"), Just("GT"), Just("GE"), Just("EQ"), Just("NE")],
    ) {
        let ty = TYPES[base];
        let (body_lines, next, _) = lines(&body, ty, "b");
        let body_lines = format!("{body_lines} next = {} convert({next})", shape(ty));
        let (condition_lines, value, last) = lines(&condition, ty, "c");
        let bound = wrap(last, bound);
        let condition_lines = format!(
            "{condition_lines} limit = {} constant({bound})\n ROOT r = pred[] compare({value}, limit), direction={direction}",
            shape(last),
        );
        let init = wrap(ty, init);
        let case = Loop {
            ty: &shape(ty).replace("[]", ""), condition: &condition_lines, body: &body_lines, init,
            bound: init, ..Loop::default()
        };
        let mut value = init;
        let mut machine = None;
        for count in 0..300 {
            if !holds(direction, run(&condition, ty, value), bound) {
                machine = Some(count);
                break;
            }
            value = wrap(ty, run(&body, ty, value));
        }
        if let Some(count) = case.count() {
            prop_assert_eq!(Some(count), machine, "{}", case.text());
        }
    }
}

/// Bits and whether signed.
type Integer = (u32, bool);

const TYPES: [Integer; 4] = [(4, true), (4, false), (8, true), (8, false)];

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add(i128),
    Subtract(i128),
    SubtractFrom(i128),
    Multiply(i128),
    Convert(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (-3i128..4).prop_map(Operation::Add),
        any::<i16>().prop_map(|n| Operation::Add(n.into())),
        (-3i128..4).prop_map(Operation::Subtract),
        (-3i128..4).prop_map(Operation::SubtractFrom),
        (-2i128..3).prop_map(Operation::Multiply),
        (0usize..4).prop_map(Operation::Convert),
        (0usize..4).prop_map(Operation::Convert),
    ]
}

fn shape((bits, signed): Integer) -> String {
    format!("{}{bits}[]", if signed { "s" } else { "u" })
}

fn wrap((bits, signed): Integer, value: i128) -> i128 {
    let value = value.rem_euclid(1 << bits);
    if signed && value >= 1 << (bits - 1) { value - (1 << bits) } else { value }
}

fn holds(direction: &str, a: i128, b: i128) -> bool {
    match direction {
        "LT" => a < b,
        "LE" => a <= b,
        "GT" => a > b,
        "GE" => a >= b,
        "EQ" => a == b,
        _ => a != b,
    }
}

/// The operations on `i` as text; the name and type of the result.
fn lines(operations: &[Operation], ty: Integer, prefix: &str) -> (String, String, Integer) {
    let (mut text, mut name, mut ty) = (String::new(), String::from("i"), ty);
    for (n, operation) in operations.iter().enumerate() {
        let result = format!("{prefix}{n}");
        let constant =
            |value: i128| format!("{result}k = {} constant({})\n ", shape(ty), wrap(ty, value));
        let (line, next) = match operation {
            Operation::Add(k) => {
                (format!("{}{result} = {} add({name}, {result}k)", constant(*k), shape(ty)), ty)
            }
            Operation::Subtract(k) => (
                format!("{}{result} = {} subtract({name}, {result}k)", constant(*k), shape(ty)),
                ty,
            ),
            Operation::SubtractFrom(k) => (
                format!("{}{result} = {} subtract({result}k, {name})", constant(*k), shape(ty)),
                ty,
            ),
            Operation::Multiply(k) => (
                format!("{}{result} = {} multiply({result}k, {name})", constant(*k), shape(ty)),
                ty,
            ),
            Operation::Convert(to) => {
                (format!("{result} = {} convert({name})", shape(TYPES[*to])), TYPES[*to])
            }
        };
        text += &format!("{line}\n ");
        (name, ty) = (result, next);
    }
    (text, name, ty)
}

/// The result of the operations on `value` in wrap-around arithmetic.
fn run(operations: &[Operation], ty: Integer, value: i128) -> i128 {
    let (mut value, mut ty) = (value, ty);
    for operation in operations {
        value = match operation {
            Operation::Add(k) => wrap(ty, value + k),
            Operation::Subtract(k) => wrap(ty, value - k),
            Operation::SubtractFrom(k) => wrap(ty, k - value),
            Operation::Multiply(k) => wrap(ty, value * k),
            Operation::Convert(to) => {
                ty = TYPES[*to];
                wrap(ty, value)
            }
        };
    }
    value
}

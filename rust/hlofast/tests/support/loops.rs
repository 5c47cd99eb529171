//! Small loops to count.

use hlofast::flow::trip_count::{TripCount, trip_count, trip_counts};
use hlofast::text::Source;
use hlofast::{Options, Provenance};

/// The trip count of the only loop in `text`.
pub fn only(text: &str) -> TripCount {
    let source = Source::from_slice(text.as_bytes());
    let module = hlofast::parse(source, &Options::default());
    let module = module.unwrap_or_else(|error| panic!("{error}: {text}"));
    let counts = trip_counts(&module);
    assert_eq!(counts.len(), 1, "{text}");
    assert_eq!(trip_count(&module, counts[0].0), counts[0].1);
    counts[0].1
}

/// A loop whose state is (induction variable, bound, a second integer, an array).
pub struct Loop<'a> {
    pub ty: &'a str,
    pub condition: &'a str,
    pub body: &'a str,
    pub next: &'a str,
    pub init: i128,
    pub bound: i128,
    pub extra: &'a str,
}

impl Default for Loop<'_> {
    fn default() -> Self {
        Loop {
            ty: "s32",
            condition: "ROOT less = pred[] compare(i, n), direction=LT",
            body: "one = T[] constant(1)\n next = T[] add(i, one)",
            next: "next",
            init: 0,
            bound: 10,
            extra: "",
        }
    }
}

impl Loop<'_> {
    pub fn text(&self) -> String {
        let Loop { ty, condition, body, next, init, bound, extra } = self;
        format!(
            "HloModule m
{extra}
condition {{
  state = (T[], T[], T[], f32[8]) parameter(0)
  i = T[] get-tuple-element(state), index=0
  n = T[] get-tuple-element(state), index=1
  k = T[] get-tuple-element(state), index=2
  x = f32[8] get-tuple-element(state), index=3
  {condition}
}}
body {{
  state = (T[], T[], T[], f32[8]) parameter(0)
  i = T[] get-tuple-element(state), index=0
  n = T[] get-tuple-element(state), index=1
  k = T[] get-tuple-element(state), index=2
  x = f32[8] get-tuple-element(state), index=3
  y = f32[8] negate(x)
  {body}
  ROOT out = (T[], T[], T[], f32[8]) tuple({next}, n, k, y)
}}
ENTRY main {{
  p = f32[8] parameter(0)
  d = T[] parameter(1)
  first = T[] constant({init})
  limit = T[] constant({bound})
  state = (T[], T[], T[], f32[8]) tuple(first, limit, first, p)
  ROOT loop = (T[], T[], T[], f32[8]) while(state), condition=condition, body=body
}}
"
        )
        .replace("T[]", &format!("{ty}[]"))
        .replace("T[1]", &format!("{ty}[1]"))
    }

    pub fn count(&self) -> Option<u64> {
        let trip_count = only(&self.text());
        let expected =
            if trip_count.count.is_some() { Provenance::Exact } else { Provenance::Unknown };
        assert_eq!(trip_count.provenance, expected);
        assert!(!trip_count.reason.is_empty());
        trip_count.count
    }
}
